"""Problems from a list."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from penstock.errors import ConfigError
from penstock.types import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedProblems:
    """A source over given problems. Pass 0 keeps their order; each later pass has one of its own, by `seed`."""

    name: str
    problems: Sequence[Problem]
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.problems:
            raise ConfigError(f"source {self.name!r} has no problems")

    @property
    def size(self) -> int:
        """Problems in one pass."""
        return len(self.problems)

    def problem(self, pass_: int, index: int) -> Problem:
        """See `ProblemSource`."""
        return self.problems[index if pass_ == 0 else _order(self.size, self.seed, pass_)[index]]


@lru_cache(maxsize=8)
def _order(size: int, seed: int, pass_: int) -> tuple[int, ...]:
    return tuple(random.Random(f"{seed} {pass_}").sample(range(size), size))
