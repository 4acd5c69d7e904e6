"""Small batches of tokens to try losses on, how they lie in rows, and how one that shows a fault is made smaller. Pure; called by `check_losses`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from penstock.batching import pack
from penstock.lab.check_cases import shrunk
from penstock.learner.losses.trial import TrialTokens
from penstock.types import Float64Array, RlExample, Sample

PLACES = "trial_places"
LOGPROBS = "trial_logprobs"
PROMPT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token with loss. All numbers are short in base two: rows hold them in fp32 without rounding."""

    log_ratio: float
    behaviour: float = -4.0
    advantage: float = 1.0


Tokens = tuple[tuple[Token, ...], ...]
"""Sample by sample."""


def token_cases() -> list[Tokens]:
    """Batches to try, smallest first, from the sampler's own weights to ratios far away from them."""
    random = np.random.default_rng(11)
    found = []
    for lengths in ((1,), (2,), (1, 1), (3, 2), (4, 1, 2)):
        for ratios, advantages in (
            ((0.0,), (1.0, -1.0)),
            ((0.0, 2**-12, -(2**-12)), (0.0, 0.5, -2.0)),
            ((-0.125, 0.125), (1.0, -1.0)),
            ((-0.5, 0.0, 0.5), (0.0, 0.5, -2.0)),
            ((-3.0, -0.25, 0.25, 3.0), (1.0, -2.0)),
        ):
            found.append(tuple(tuple(_token(random, ratios, advantages) for _ in range(length)) for length in lengths))
    return found


def on_policy(case: Tokens) -> Tokens:
    """The same tokens, under the weights that sampled them."""
    return tuple(tuple(replace(token, log_ratio=0.0) for token in sample) for sample in case)


def _token(random: np.random.Generator, ratios: Sequence[float], advantages: Sequence[float]) -> Token:
    return Token(
        log_ratio=float(random.choice(ratios)),
        behaviour=-3.5 - float(random.integers(0, 11)) / 4,
        advantage=float(random.choice(advantages)),
    )


def columns_of(case: Tokens, samples: Sequence[int] | None = None) -> TrialTokens:
    """The tokens of all samples, or of some, one sample after another."""
    numbers = range(len(case)) if samples is None else samples
    tokens = [(number, token) for number in numbers for token in case[number]]
    behaviour_L = np.array([token.behaviour for _, token in tokens])
    return TrialTokens(
        logprobs_L=behaviour_L + np.array([token.log_ratio for _, token in tokens]),
        behaviour_logprobs_L=behaviour_L,
        advantages_L=np.array([token.advantage for _, token in tokens]),
        reference_logprobs_L=behaviour_L - 0.25,
        sample_ids_L=np.array([float(number) for number, _ in tokens]),
    )


def chosen(tokens: TrialTokens, places: Sequence[int]) -> TrialTokens:
    """Some of the tokens, in that order."""
    order = list(places)
    return TrialTokens(
        logprobs_L=tokens.logprobs_L[order],
        behaviour_logprobs_L=tokens.behaviour_logprobs_L[order],
        advantages_L=tokens.advantages_L[order],
        reference_logprobs_L=tokens.reference_logprobs_L[order],
        sample_ids_L=tokens.sample_ids_L[order],
    )


@lru_cache(maxsize=64)
def packed(case: Tokens, *, tokens_per_row: int | None, padding: int = 0) -> RlExample:
    """The samples in rows, behind prompts, with `padding` more empty places at the end of each row."""
    starts = np.cumsum([0, *map(len, case)])
    example = pack([_sample(number, int(starts[number]), tokens) for number, tokens in enumerate(case)], tokens_per_row=tokens_per_row)
    return _padded(example, padding) if padding else example


def in_rows(example: RlExample) -> tuple[TrialTokens, list[int]]:
    """The tokens with loss of a packed batch, row by row, and which token of the batch each is."""
    mask_RT = example.loss_mask
    behaviour_L = example.policy_logprobs[mask_RT].astype(np.float64)
    tokens = TrialTokens(
        logprobs_L=example.arrays[LOGPROBS][mask_RT].astype(np.float64),
        behaviour_logprobs_L=behaviour_L,
        advantages_L=example.advantages[mask_RT].astype(np.float64),
        reference_logprobs_L=behaviour_L - 0.25,
        sample_ids_L=example.sample_ids[mask_RT].astype(np.float64),
    )
    return tokens, example.arrays[PLACES][mask_RT].astype(int).tolist()


def _sample(number: int, start: int, tokens: Sequence[Token]) -> Sample:
    """A prompt of its own and a reply with loss. What stands where there is no loss would be seen if it were used."""
    length = PROMPT + len(tokens)

    def column(values: Sequence[float], before: float) -> Float64Array:
        return np.array([before] * PROMPT + list(values))

    return Sample(
        run="check",
        environment="check",
        group_id=f"check/0/{number}",
        rollout_uid=f"check/0/{number}:0:0",
        path=(0, 1),
        lengths=(PROMPT, len(tokens)),
        ids=np.arange(length, dtype=np.int32) + 100 * number,
        loss_mask=np.arange(length) >= PROMPT,
        logprobs=column([token.behaviour for token in tokens], 0.0).astype(np.float32),
        versions=np.where(np.arange(length) >= PROMPT, 0, -1).astype(np.int32),
        advantages=column([token.advantage for token in tokens], 1000.0).astype(np.float32),
        mixed_kv=np.zeros(length, np.bool_),
        arrays={LOGPROBS: column([token.behaviour + token.log_ratio for token in tokens], 9.0), PLACES: column(range(start, start + len(tokens)), -1.0)},
    )


def _padded(example: RlExample, padding: int) -> RlExample:
    """The same rows, wider."""

    def wider(array: Float64Array, fill: float) -> Float64Array:
        return np.pad(array, ((0, 0), (0, padding)), constant_values=fill)

    names = {"input_ids": 0, "loss_mask": 0, "segment_ids": 0, "position_ids": 0, "predecessors": -1, "advantages": 1000, "policy_logprobs": 0}
    names |= {"versions": -1, "mixed_kv": 0, "sample_ids": -1}
    made: dict[str, Any] = {name: wider(getattr(example, name), fill) for name, fill in names.items()}
    return replace(example, **made, arrays={name: wider(array, 9.0) for name, array in example.arrays.items()})


def smallest(case: Tokens, fails: Callable[[Tokens], bool]) -> Tokens:
    """A batch that still fails and of which no sample, token or number can be taken away."""
    return shrunk(case, fails, _simpler)


def _simpler(case: Tokens) -> Iterator[Tokens]:
    for place in range(len(case)):
        if len(case) > 1:
            yield (*case[:place], *case[place + 1 :])
    for place, sample in enumerate(case):
        for number, token in enumerate(sample):
            if len(sample) > 1:
                yield (*case[:place], (*sample[:number], *sample[number + 1 :]), *case[place + 1 :])
            for other in _simpler_tokens(token):
                yield (*case[:place], (*sample[:number], other, *sample[number + 1 :]), *case[place + 1 :])


def _simpler_tokens(token: Token) -> Iterator[Token]:
    if token.log_ratio != 0:
        yield replace(token, log_ratio=0.0)
    if token.behaviour != -4.0:
        yield replace(token, behaviour=-4.0)
    if token.advantage not in (0.0, 1.0):
        yield replace(token, advantage=1.0)
