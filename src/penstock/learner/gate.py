"""The gate: the sampler's logprobs against the learner's, under the version that sampled the token.

Honest engines differ by rounding only. A wrong, stale or missing weight anywhere shows here within one update, before it trains.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import numpy as np

from penstock.learner.config import GateConfig
from penstock.types import Float64Array, Int32Array

_BIN_EDGES = np.logspace(-9, 2, 11 * 12 + 1)
"""Twelve bins a decade, from 1e-9 to 100 nats."""
BIN_NAMES = (*(f"{edge:.2e}" for edge in _BIN_EDGES), "inf")
"""Upper edge of each bin of a histogram."""
_ENOUGH_TOKENS = 10_000
"""Among so many ten are expected above the bound of 99.9 %, and a few that come together do not stand out."""
_MOST_PASSED = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """How far sampler and learner disagree over some tokens, in nats."""

    tokens: int = 0
    """How many were compared."""
    mixed_kv: int = 0
    """How many were left out because the sampler's cache held older weights."""
    p999: float = 0.0
    """Smallest bound that 99.9 % of the tokens keep."""
    max: float = 0.0
    histogram: tuple[int, ...] = ()
    """Tokens by size of the difference: below 1e-9, then twelve bins a decade, the last one open. Empty: no token."""

    def __add__(self, other: Mismatch) -> Mismatch:
        """Over both sets of tokens. `p999` is then the upper edge of its bin, at most 21 % too large, never too small."""
        if self.tokens == 0 or other.tokens == 0:
            full = self if other.tokens == 0 else other
            return Mismatch(tokens=full.tokens, mixed_kv=self.mixed_kv + other.mixed_kv, p999=full.p999, max=full.max, histogram=full.histogram)
        histogram = np.add(self.histogram, other.histogram)
        largest = max(self.max, other.max)
        place = int(np.searchsorted(np.cumsum(histogram), _rank(int(histogram.sum()))))
        return Mismatch(
            tokens=self.tokens + other.tokens,
            mixed_kv=self.mixed_kv + other.mixed_kv,
            p999=float(min(largest, _BIN_EDGES[place])) if place < len(_BIN_EDGES) else largest,
            max=largest,
            histogram=tuple(histogram.tolist()),
        )


def mismatch(sampler_L: Float64Array, learner_L: Float64Array, *, mixed_kv: int) -> Mismatch:
    """Compare logprobs of the same tokens.

    >>> mismatch(np.array([-1.0, -2.0]), np.array([-1.0, -2.5]), mixed_kv=3).max
    0.5
    """
    differences_L = np.sort(np.abs(sampler_L - learner_L))
    if len(differences_L) == 0:
        return Mismatch(mixed_kv=mixed_kv)
    return Mismatch(
        tokens=len(differences_L),
        mixed_kv=mixed_kv,
        p999=float(differences_L[_rank(len(differences_L)) - 1]),
        max=float(differences_L[-1]),
        histogram=tuple(np.bincount(np.searchsorted(_BIN_EDGES, differences_L), minlength=len(_BIN_EDGES) + 1).tolist()),
    )


class Gate:
    """Decides about one update after the other whether sampler and learner agree."""

    def __init__(self, config: GateConfig) -> None:
        self._config = config
        self._passed: deque[tuple[int, int]] = deque(maxlen=_MOST_PASSED)
        """Of the last updates that agreed, how many tokens each had, and how many of them above the bound of 99.9 %."""

    def breach(self, sampler_L: Float64Array, learner_L: Float64Array, versions_L: Int32Array) -> str | None:
        """A sentence that says which version disagrees most, how much and where, if the bounds are broken; None if they hold."""
        config = self._config
        found = mismatch(sampler_L, learner_L, mixed_kv=0)
        differences_L = np.abs(sampler_L - learner_L)
        num_above = int((differences_L > config.p999_limit).sum())
        if found.max <= config.max_limit and self._is_chance(found.tokens, num_above):
            self._passed.append((found.tokens, num_above))
            return None
        worst = int(np.argmax(differences_L))
        mine_L = versions_L == versions_L[worst]
        num_apart = int((differences_L[mine_L] > config.p999_limit).sum())
        return (
            f"sampler and learner disagree about version {versions_L[worst]}: {num_apart} of its {int(mine_L.sum())} tokens differ by more than "
            f"{config.p999_limit:g}, at most by {found.max:.3g} (bound {config.max_limit:g}; p99.9 over all {found.tokens} tokens {found.p999:.3g}); where "
            f"they differ most the sampler gave {sampler_L[worst]:.6f}, the learner {learner_L[worst]:.6f}. "
            "A server sampled from other weights than it named, or computes them differently"
        )

    def _is_chance(self, count: int, num_above: int) -> bool:
        """Whether so many of `count` tokens may lie above the bound.

        Tokens of a small batch are not independent: members of a group that come to the same hard place are all rounded the same way there. So a batch
        with more than chance explains passes together with those before it, unless most of it lies above: that is what wrong weights do.
        """
        if num_above <= most_above(count):
            return True
        if 2 * num_above > count:
            return False
        for more, more_above in reversed(self._passed):
            if count >= _ENOUGH_TOKENS:
                break
            count, num_above = count + more, num_above + more_above
        return num_above <= most_above(count)


def most_above(count: int) -> int:
    """How many of `count` tokens may lie above a bound that 99.9 % of all tokens keep: what is expected, four standard deviations, and one.

    In a small batch the 99.9th percentile is the maximum, and one token that rounding put just above the bound would stop the run. Wrong weights are
    not near this: they move most tokens.

    >>> [most_above(count) for count in (1, 1000, 100_000)]
    [1, 6, 141]
    """
    expected = count / 1000
    return int(1 + expected + 4 * math.sqrt(expected))


def _rank(count: int) -> int:
    """How many of `count` tokens are 99.9 % of them, rounded up."""
    return -(-count * 999 // 1000)
