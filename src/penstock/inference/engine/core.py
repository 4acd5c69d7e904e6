"""The engine: continuous batching of replies over one set of weights. Synchronous and single-threaded; `loop` runs it in a thread of its own.

    submit -> queue --admit (prefill, first token)--> running --decode, one token a step--> finished

A step is the unit in which everything happens: requests are admitted, aborted and given other weights between steps only. So a token is always
sampled by exactly one version, and the version that a reply reports is the one whose tensors computed the logits.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from penstock.errors import ConflictError, InvalidError
from penstock.inference.engine.beginnings import Beginnings
from penstock.inference.engine.decoding import DecodeAttention
from penstock.inference.engine.forward import MIN_ROWS, forward, project
from penstock.inference.engine.packing import Weights
from penstock.inference.engine.pools import Pools, Seat
from penstock.inference.engine.prefill import Prefill, Prompt
from penstock.inference.engine.prefixes import CHUNK
from penstock.inference.engine.requests import Choice, Finish, Request
from penstock.inference.engine.rotary import rotations
from penstock.inference.engine.sampling import Drawn, Randomness, draw
from penstock.inference.engine.stops import Decode, num_tail_tokens, stop_in_tail
from penstock.inference.limits import EngineLimits


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Served:
    """Weights with their name."""

    policy: str
    version: int
    digest: str
    weights: Weights


@dataclass(slots=True)
class Counters:
    """What the engine has done since it started."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    sampled_tokens: int = 0
    steps: int = 0
    swaps: int = 0
    recomputed_tokens: int = 0
    finished: dict[str, int] = field(default_factory=dict)
    """Replies by the reason they ended."""


class Engine:
    """Computes replies to requests, a token each per step."""

    def __init__(self, served: Served, limits: EngineLimits, *, decode: Decode) -> None:
        self.limits = limits
        self.counters = Counters()
        self.served = served
        architecture = served.weights.architecture
        self.context_tokens = min(architecture.max_positions, limits.context_tokens, limits.kv_tokens)
        self._architecture = architecture
        self._decode = decode
        self._rotations = rotations(architecture, self.context_tokens)
        self._prefill = Prefill(served.weights, self._rotations, max_kept_tokens=limits.prefix_tokens, max_rows=limits.prefill_tokens)
        self._pools = Pools(architecture)
        self._beginnings = Beginnings(architecture)
        self._queue: deque[Request] = deque()
        self._choices: dict[Seat, Choice] = {}
        self._reserved_tokens = 0

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._queue or self._choices)

    @property
    def num_queued(self) -> int:
        """Requests that wait to be admitted."""
        return len(self._queue)

    @property
    def num_running(self) -> int:
        """Replies under way."""
        return len(self._choices)

    @property
    def reserved_tokens(self) -> int:
        """Places of the cache that are spoken for."""
        return self._reserved_tokens

    @property
    def kept_prefix_tokens(self) -> int:
        """Tokens of prompts that are kept for later requests."""
        return self._prefill.cache.num_tokens

    def check(self, request: Request) -> None:
        """`InvalidError` if `request` could never be served."""
        num_prompt, vocab_size = len(request.prompt), self._architecture.vocab_size
        if num_prompt == 0:
            raise InvalidError("the prompt is empty")
        if num_prompt >= self.context_tokens:
            raise InvalidError(f"the prompt has {num_prompt} tokens, which leaves no room for a reply in a context of {self.context_tokens}")
        if int(request.prompt.min()) < 0 or int(request.prompt.max()) >= vocab_size:
            raise InvalidError(f"prompt ids must lie in 0..{vocab_size - 1}, got {int(request.prompt.min())}..{int(request.prompt.max())}")
        if request.max_tokens < 1 or num_prompt + request.max_tokens > self.context_tokens:
            raise InvalidError(f"max_tokens must lie in 1..{self.context_tokens - num_prompt} for this prompt, got {request.max_tokens}")
        if not 1 <= request.num_choices <= self.limits.max_running:
            raise InvalidError(f"n must lie in 1..{self.limits.max_running}, got {request.num_choices}")
        if request.reserved_tokens > self.limits.kv_tokens:
            raise InvalidError(
                f"n replies could need {request.reserved_tokens} tokens of cache, there are {self.limits.kv_tokens}: ask for fewer or shorter ones"
            )

    def submit(self, request: Request) -> None:
        """Queue a checked request."""
        self.check(request)
        self._queue.append(request)

    @torch.inference_mode()
    def abort(self, is_meant: Callable[[Request], bool]) -> list[Choice]:
        """End the requests that are meant, queued or running, and return their replies as far as they came."""
        aborted = [_fresh(request, index) for request in self._queue if is_meant(request) for index in range(request.num_choices)]
        self._queue = deque(request for request in self._queue if not is_meant(request))
        aborted += [choice for choice in self._choices.values() if is_meant(choice.request)]
        for choice in aborted:
            self._finish(choice, Finish.ABORT)
        return aborted

    @torch.inference_mode()
    def swap(self, served: Served, *, keep_kv: bool = False) -> None:
        """Sample from other weights from the next token on.

        Replies under way go on. By default their keys and values are computed anew first; with `keep_kv` they stay, and the tokens that follow are
        marked `mixed_kv`. Raises `ConflictError` if the version is being served with another digest.
        """
        old = self.served
        if (served.policy, served.version) == (old.policy, old.version) and served.digest != old.digest:
            raise ConflictError(f"version {old.version} of {old.policy} is {old.digest}, not {served.digest}: a version is never used for other weights")
        self.served = served
        if served.digest == old.digest:
            return
        self.counters.swaps += 1
        self._prefill.use(served.weights)
        if keep_kv:
            for choice in self._choices.values():
                choice.mixed_kv = True
        else:
            self._recompute()

    @torch.inference_mode()
    def step(self) -> list[Choice]:
        """Admit what fits, give every running reply a token more, and return the replies that grew or ended, each once."""
        self.counters.steps += 1
        ended_at_once = [choice for choice in self._admit() if choice.finish is not None]
        running = list(self._choices.values())
        if running:
            self._decode_running()
        return running + ended_at_once

    def _admit(self) -> list[Choice]:
        """Take requests from the queue while they fit, compute their prompts, sample their first tokens."""
        requests = self._take_from_queue()
        if not requests:
            return []
        prompts = [Prompt(request.prompt) for request in requests]
        self._prefill.run(prompts)
        self._pools.expect(len(request.prompt) % CHUNK for request in requests for _ in range(request.num_choices))
        choices: list[Choice] = []
        hidden: list[Tensor] = []
        for request, prompt in zip(requests, prompts, strict=True):
            self.counters.prompt_tokens += len(prompt.ids)
            self.counters.cached_tokens += prompt.num_cached
            for index in range(request.num_choices):
                choice = _fresh(request, index, cached_tokens=prompt.num_cached)
                self._seat(choice, prompt)
                choices.append(choice)
                hidden.append(prompt.chunks[-1].hidden)
        self._sample(choices, torch.stack(hidden))
        return choices

    def _take_from_queue(self) -> list[Request]:
        requests: list[Request] = []
        num_running, num_rows = self.num_running, 0
        while self._queue and num_rows < self.limits.prefill_tokens:
            request = self._queue[0]
            num_running += request.num_choices
            if num_running > self.limits.max_running or self._reserved_tokens + request.reserved_tokens > self.limits.kv_tokens:
                break
            requests.append(self._queue.popleft())
            self._reserved_tokens += request.reserved_tokens
            num_rows += len(request.prompt)
        return requests

    def _decode_running(self) -> None:
        self._pools.extend(list(self._choices))
        pools = list(self._pools)
        seats = [seat for pool in pools for seat in pool.seats]
        choices = [self._choices[seat] for seat in seats]
        padding = [0] * (MIN_ROWS - len(seats))
        ids = torch.tensor([choice.drawn[-1].id for choice in choices] + padding)
        positions = torch.tensor([seat.num_tokens for seat in seats] + padding)
        hidden = forward(self.served.weights, ids, self._rotations[positions], DecodeAttention(pools, self._beginnings.pools, self._architecture))
        for seat in seats:
            seat.length += 1
        self._sample(choices, hidden[: len(seats)])

    def _sample(self, choices: Sequence[Choice], hidden: Tensor) -> None:
        settings = [choice.request.sampling for choice in choices]
        uniforms = [choice.randomness.at(len(choice.drawn)) for choice in choices]
        tokens = draw(project(self.served.weights, hidden), settings, uniforms)
        for choice, token in zip(choices, tokens, strict=True):
            if not math.isfinite(token.logprob):
                self._finish(choice, Finish.ERROR)
                continue
            choice.sampled(token, self.served.policy, self.served.version)
            self.counters.sampled_tokens += 1
            self._finish_if_due(choice, token)

    def _finish_if_due(self, choice: Choice, token: Drawn) -> None:
        request = choice.request
        if token.id in request.stop_ids:
            self._finish(choice, Finish.STOP)
            return
        if request.stop_texts:
            tail = [one.id for one in choice.drawn[-num_tail_tokens(request.stop_texts) :]]
            choice.stop_text = stop_in_tail(self._decode, tail, request.stop_texts)
        if choice.stop_text is not None:
            self._finish(choice, Finish.STOP)
        elif len(choice.drawn) >= request.max_tokens:
            self._finish(choice, Finish.LENGTH)

    def _finish(self, choice: Choice, reason: Finish) -> None:
        choice.finish = reason
        self.counters.finished[reason] = self.counters.finished.get(reason, 0) + 1
        if choice.seat is not None:
            self._pools.leave(choice.seat)
            if choice.seat.beginning is not None:
                self._beginnings.leave(choice.seat.beginning)
            del self._choices[choice.seat]
            self._reserved_tokens -= choice.request.reserved_tokens // choice.request.num_choices
            choice.seat = None

    def _seat(self, choice: Choice, prompt: Prompt) -> None:
        num_shared = len(choice.request.prompt) // CHUNK
        beginning = self._beginnings.join(prompt.chunks[:num_shared])
        choice.seat = self._pools.seat([chunk.layers for chunk in prompt.chunks[num_shared:]], len(prompt.ids) - num_shared * CHUNK, beginning)
        self._choices[choice.seat] = choice

    def _recompute(self) -> None:
        """Compute the keys and values of all running replies anew, shared beginnings once."""
        choices = list(self._choices.values())
        # The last token has no keys and values yet: the next step computes them.
        prompts = [Prompt(np.concatenate([choice.request.prompt, np.array(choice.ids[:-1], np.int32)])) for choice in choices]
        self._prefill.run(prompts)
        self._pools.clear()
        self._beginnings.clear()
        self._choices.clear()
        self._pools.expect(len(prompt.ids) - len(choice.request.prompt) // CHUNK * CHUNK for choice, prompt in zip(choices, prompts, strict=True))
        for choice, prompt in zip(choices, prompts, strict=True):
            self.counters.recomputed_tokens += len(prompt.ids) - prompt.num_cached
            self._seat(choice, prompt)
            choice.mixed_kv = False


def _fresh(request: Request, index: int, *, cached_tokens: int = 0) -> Choice:
    return Choice(request, index, Randomness(request.sampling.seed, index), cached_tokens=cached_tokens)
