"""The embedded engine without a server: the same call as `InferenceClient.complete`, answered in this process.

For pinned evaluation, which must not sample from whatever a server happens to serve. Importing this module imports torch.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from penstock.chat import ChatTemplate
from penstock.errors import ConfigError, InfraError
from penstock.inference.client import Continuation, Reply, ServedWeights
from penstock.inference.engine.architecture import read_architecture
from penstock.inference.engine.core import Engine, Served
from penstock.inference.engine.requests import Choice, Finish, Request
from penstock.inference.engine.sampling import Sampling
from penstock.inference.limits import EngineLimits
from penstock.inference.replies import reply_text
from penstock.inference.service import load_template
from penstock.inference.weights import served_from_digest, served_from_model
from penstock.types import InferenceMetadata, SamplerFacts, Usage

_BYTES_PER_FLOAT = 4


class LocalEngine:
    """One set of weights, for as long as it lives. Used from one event loop.

    The engine computes in the event loop itself, a step at a time, and everything else runs between two steps. A thread of its own would be slower: the
    two would hand the interpreter's lock to and fro. So this is not for a process that must answer somebody meanwhile.
    """

    def __init__(self, served: Served, limits: EngineLimits, template: ChatTemplate | None) -> None:
        self._decode = template.decode if template is not None else lambda _: ""
        self._engine = Engine(served, limits, decode=self._decode)
        self._eos_ids = frozenset(served.weights.architecture.eos_ids) | frozenset(template.eos_ids if template is not None else ())
        self._facts = SamplerFacts(
            template_digest=template.digest if template is not None else "",
            tokenizer_digest=template.tokenizer_digest if template is not None else "",
            engine="penstock",
            dtype="float32",
        )
        self._awaited: dict[Request, asyncio.Future[Choice]] = {}
        self._computing: asyncio.Task[None] | None = None
        self._most_tokens = 0

    @classmethod
    def load(
        cls,
        model: Path,
        *,
        weights_dir: Path | None = None,
        digest: str = "",
        policy: str = "policy",
        version: int = 0,
        threads: int = 1,
        max_running: int = 128,
        template: ChatTemplate | None = None,
    ) -> LocalEngine:
        """The weights `digest` from `weights_dir`, or those of the model directory if there is no digest. Raises `ConfigError` or `WeightsError`."""
        torch.set_num_threads(threads)
        architecture = read_architecture(model)
        if not digest:
            served = served_from_model(model, architecture, policy=policy, version=version)
        elif weights_dir is not None:
            served = served_from_digest(weights_dir, architecture, policy=policy, version=version, digest=digest)
        else:
            raise ConfigError(f"weights {digest} are asked for, but there is no directory to find them in")
        return cls(served, EngineLimits(max_running=max_running), template or load_template(model))

    @property
    def served(self) -> ServedWeights:
        """What it samples with."""
        served = self._engine.served
        return ServedWeights(policy=served.policy, version=served.version, digest=served.digest, newest_version=served.version)

    @property
    def sampled_tokens(self) -> int:
        """Since it was made."""
        return self._engine.counters.sampled_tokens

    @property
    def cache_bytes(self) -> int:
        """What its caches have come to take so far, with what they take for moments while they grow."""
        return self._cache_bytes(self._most_tokens)

    @property
    def most_cache_bytes(self) -> int:
        """What they may come to take."""
        limits = self._engine.limits
        return self._cache_bytes(limits.kv_tokens + limits.prefix_tokens)

    def _cache_bytes(self, num_tokens: int) -> int:
        return 2 * num_tokens * self._engine.served.weights.architecture.kv_floats_per_token * _BYTES_PER_FLOAT

    async def complete(self, wanted: Continuation, *, deadline_seconds: float | None = None) -> Reply:
        """See `InferenceClient.complete`. Any number of requests may wait."""
        prompt = np.asarray(wanted.ids, np.int32)
        request = Request(
            id=wanted.request_id or secrets.token_hex(12),
            prompt=prompt,
            # A reply ends where the context does, however much was asked for.
            max_tokens=max(1, min(wanted.max_tokens, self._engine.context_tokens - len(prompt))),
            sampling=Sampling(temperature=wanted.temperature, seed=secrets.randbits(63) if wanted.seed is None else wanted.seed),
            stop_ids=frozenset(wanted.stop_ids) | self._eos_ids,
            stop_texts=tuple(wanted.stop),
        )
        started = time.monotonic()
        try:
            async with asyncio.timeout(deadline_seconds):
                choice = await self._choice(request)
        except TimeoutError:
            raise InfraError(f"the engine in this process has no reply after {deadline_seconds} s") from None
        return self._reply(choice, time.monotonic() - started)

    async def _choice(self, request: Request) -> Choice:
        self._engine.submit(request)
        awaited: asyncio.Future[Choice] = asyncio.get_running_loop().create_future()
        self._awaited[request] = awaited
        if self._computing is None or self._computing.done():
            self._computing = asyncio.create_task(self._compute())
        try:
            return await awaited
        finally:
            if self._awaited.pop(request, None) is not None:  # nobody waits for it any more
                self._engine.abort(lambda other: other is request)

    async def _compute(self) -> None:
        """Step while there is something to do. An error of the engine goes to everybody who waits."""
        while self._engine.has_work:
            try:
                choices = self._engine.step()
            except Exception as error:
                self._fail(f"the engine failed: {type(error).__name__}: {error}")
                raise
            self._most_tokens = max(self._most_tokens, self._engine.reserved_tokens + self._engine.kept_prefix_tokens)
            for choice in choices:
                awaited = self._awaited.get(choice.request)
                # One that was cancelled a moment ago is still here until its task has run.
                if choice.finish is not None and awaited is not None and not awaited.done():
                    del self._awaited[choice.request]
                    awaited.set_result(choice)
            await asyncio.sleep(0)

    def _fail(self, sentence: str) -> None:
        for awaited in self._awaited.values():
            if not awaited.done():
                awaited.set_exception(InfraError(sentence))
        self._awaited.clear()

    def _reply(self, choice: Choice, seconds: float) -> Reply:
        if choice.finish is Finish.ERROR:
            raise InfraError("the model gave no number where a probability should be: its weights are broken")
        request = choice.request
        return Reply(
            ids=np.array(choice.ids, np.int32),
            logprobs=np.array([token.logprob for token in choice.drawn], np.float32),
            versions=tuple(choice.versions),
            text=reply_text(choice, self._decode),
            metadata=InferenceMetadata(
                sampler=replace(self._facts, temperature=request.sampling.temperature),
                usage=Usage(prompt_tokens=len(request.prompt), cached_tokens=choice.cached_tokens, sampled_tokens=len(choice.drawn), seconds=seconds),
                finish_reason=str(choice.finish),
            ),
        )
