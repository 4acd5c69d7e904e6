"""Guess a number with hints: `1-9>` is answered by a number, then `higher>` or `lower>` until it is found. Several turns, repeated states."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from penstock.config import check_range
from penstock.envs.protocol import Observation, Reply, Rewards
from penstock.problems import Split, split_of
from penstock.types import Message, Problem, Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class GuessEnvironment:
    """Numbers from 1 to something between half of `largest` and `largest`."""

    largest: int = 9
    max_guesses: int = 6
    held_out: int = 16
    """Problems in one pass of evaluation."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_range("largest", self.largest, least=4)
        check_range("max_guesses", self.max_guesses, least=1)
        check_range("held_out", self.held_out, least=1)

    def problems(self, split: Split) -> GuessProblems:
        """See `Environment`."""
        return GuessProblems(self, split)

    def make(self) -> GuessEnv:
        """See `Environment`."""
        return GuessEnv(self.max_guesses)


@dataclass(frozen=True, slots=True)
class GuessProblems:
    """A range and a number in it. There are few, so each comes often; a (range, number) pair is on one side only."""

    settings: GuessEnvironment
    split: Split
    name: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.split.value)

    @property
    def size(self) -> int | None:
        """Endless for training."""
        return None if self.split is Split.TRAIN else self.settings.held_out

    def problem(self, pass_: int, index: int) -> Problem:
        """See `ProblemSource`."""
        source = random.Random(f"{self.settings.seed} {self.split} {index}")
        while True:
            largest = source.randint(self.settings.largest // 2, self.settings.largest)
            secret = source.randint(1, largest)
            if split_of(f"{largest} {secret}", held_out_one_in=4) is self.split:
                return Problem(id=f"guess-{secret}-of-{largest}", environment="guess", prompt=f"1-{largest}>", task={"largest": largest}, ground_truth=secret)


class GuessEnv:
    """One number to find."""

    def __init__(self, max_guesses: int) -> None:
        self._left = max_guesses
        self._low, self._high, self._secret = 1, 1, 1
        self._is_found = False

    async def open(self, problem: Problem, seed: int) -> Observation:
        """See `Env`."""
        assert isinstance(problem.prompt, str)
        self._high, self._secret = int(problem.task["largest"]), int(problem.ground_truth)
        return self._shown(problem.prompt)

    async def step(self, reply: Reply) -> Observation:
        """See `Env`. What is no number costs a guess and tells nothing."""
        self._left -= 1
        text = reply.text.strip()
        guess = int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else None
        self._is_found = guess == self._secret and not reply.truncated
        if self._is_found or self._left == 0:
            return Observation(reward=float(self._is_found), done=True, info={"guess": guess})
        if guess is None:
            return self._shown("a number>", reward=0.0, guess=None)
        if guess < self._secret:
            self._low = max(self._low, guess + 1)
            return self._shown("higher>", reward=0.0, guess=guess)
        self._high = min(self._high, guess - 1)
        return self._shown("lower>", reward=0.0, guess=guess)

    async def score(self, rollout: Rollout) -> Rewards:
        """See `Env`."""
        return {"found": float(self._is_found)}

    def _shown(self, text: str, *, reward: float | None = None, guess: int | None = None) -> Observation:
        info = {} if reward is None else {"guess": guess}
        state = {"low": self._low, "high": self._high, "left": self._left}
        return Observation(messages=(Message(role="user", content=text),), reward=reward, info=info, observation=state)
