"""Digits to sort: `sort 50718>` is answered by `01578`. One turn, reward 1 for the exact answer, else 0."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from penstock.config import check_range
from penstock.envs.protocol import Observation, Reply, Rewards
from penstock.errors import ConfigError
from penstock.problems import Split, split_of
from penstock.types import Message, Problem, Rollout

_HELD_OUT_ONE_IN = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SortEnvironment:
    """Makes problems of so many digits, in endless number for training."""

    min_digits: int = 4
    max_digits: int = 7
    held_out: int = 512
    """How many problems are held out of one pass of evaluation. None of them is ever trained on."""
    seed: int = 0
    """Of the order in which training problems come."""

    def __post_init__(self) -> None:
        check_range("min_digits", self.min_digits, least=1, most=self.max_digits)
        check_range("held_out", self.held_out, least=1)
        # Of 10^d problems one in 16 can be held out; a quarter of those is found quickly by drawing.
        most = 10**self.max_digits // (4 * _HELD_OUT_ONE_IN)
        if self.held_out > most:
            raise ConfigError(f"held_out: with at most {self.max_digits} digits it can be at most {most}, got {self.held_out}")

    def problems(self, split: Split) -> TrainingDigits | HeldOutDigits:
        """See `Environment`."""
        return TrainingDigits(self) if split is Split.TRAIN else HeldOutDigits(self)

    def make(self) -> SortEnv:
        """See `Environment`."""
        return SortEnv()


@dataclass(frozen=True, slots=True)
class TrainingDigits:
    """Endless; a problem may come again."""

    settings: SortEnvironment
    name: str = field(default="train", init=False)
    size: None = field(default=None, init=False)

    def problem(self, pass_: int, index: int) -> Problem:
        """See `ProblemSource`."""
        return _problem(_drawn(random.Random(f"{self.settings.seed} {pass_} {index}"), self.settings, Split.TRAIN))


@dataclass(frozen=True, slots=True)
class HeldOutDigits:
    """The same problems in the same order on every pass, all different."""

    settings: SortEnvironment
    name: str = field(default="held_out", init=False)

    @property
    def size(self) -> int:
        """As configured."""
        return self.settings.held_out

    def problem(self, pass_: int, index: int) -> Problem:
        """See `ProblemSource`."""
        return _problem(_held_out(self.settings)[index])


@lru_cache(maxsize=8)
def _held_out(settings: SortEnvironment) -> tuple[str, ...]:
    # Not by `settings.seed`: two runs that differ only in it are evaluated on the same problems.
    source = random.Random("held out")
    found: dict[str, None] = {}
    while len(found) < settings.held_out:
        found[_drawn(source, settings, Split.HELD_OUT)] = None
    return tuple(found)


def _drawn(source: random.Random, settings: SortEnvironment, split: Split) -> str:
    """Digits of the given side: every length as likely as the others, every digit too."""
    while True:
        num_digits = source.randint(settings.min_digits, settings.max_digits)
        digits = "".join(source.choices("0123456789", k=num_digits))
        if split_of(digits, held_out_one_in=_HELD_OUT_ONE_IN) is split:
            return digits


def _problem(digits: str) -> Problem:
    return Problem(id=f"sort-{digits}", environment="sort", prompt=f"sort {digits}>", ground_truth="".join(sorted(digits)), difficulty=float(len(digits)))


class SortEnv:
    """One question, one answer."""

    def __init__(self) -> None:
        self._answer = ""
        self._is_right = False

    async def open(self, problem: Problem, seed: int) -> Observation:
        """See `Env`."""
        assert isinstance(problem.prompt, str)
        self._answer = str(problem.ground_truth)
        return Observation(messages=(Message(role="user", content=problem.prompt),), observation=problem.prompt)

    async def step(self, reply: Reply) -> Observation:
        """See `Env`. An answer that was cut off is not an answer, even if the digits are right so far."""
        self._is_right = reply.text == self._answer and not reply.truncated
        return Observation(done=True)

    async def score(self, rollout: Rollout) -> Rewards:
        """See `Env`."""
        return {"exact": float(self._is_right)}


def sort_demonstrations(settings: SortEnvironment, *, seed: int = 0, corrupted: float = 0.65) -> Iterator[tuple[Problem, str]]:
    """Training problems with answers to imitate, endlessly. With probability `corrupted` the digits of the answer are in a wrong order.

    A model that imitates them knows what an answer looks like and prefers the right one, but samples mostly wrong ones: something is left to learn.
    """
    if not 0 <= corrupted <= 1:
        raise ConfigError(f"corrupted must lie in 0..1, got {corrupted}")
    source = random.Random(f"demonstrations {seed}")
    while True:
        problem = _problem(_drawn(source, settings, Split.TRAIN))
        answer = str(problem.ground_truth)
        yield problem, _disordered(source, answer) if source.random() < corrupted else answer


def _disordered(source: random.Random, answer: str) -> str:
    """The digits in another order; as they are if there is no other."""
    if len(set(answer)) < 2:
        return answer
    while (other := "".join(source.sample(answer, len(answer)))) == answer:
        pass
    return other
