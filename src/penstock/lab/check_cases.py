"""Small batches to try estimators on, and how a batch that shows a fault is made smaller. Pure; called by `check_estimators`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from penstock.advantages import RowKind

T = TypeVar("T")
Key = tuple[int, int, int]
"""A row: number of its episode, of its step and of its level."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One reply."""

    reward: float = 0.0
    anchor: str | None = "hall"
    value: float = 0.0
    confidences: tuple[float, ...] = ()
    """Of its four thinking levels; empty: the step was not expanded. Fewer than four, or NaN: expanding it did not go to its end."""
    chosen: int = 0
    """Which of the levels was sampled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One try."""

    number: int
    """Names it in every order and in every part of the batch."""
    group: int
    reward: float
    length: int = 1
    steps: tuple[Step, ...] = (Step(),)


Case = tuple[Episode, ...]
_STEPS = 100
"""More than any episode here has."""


def keys_of(case: Case, row: RowKind) -> list[Key]:
    """The rows of a batch, episode by episode, in time order."""
    if row is RowKind.EPISODE:
        return [(place, 0, 0) for place in range(len(case))]
    steps = [(place, step) for place, episode in enumerate(case) for step in range(len(episode.steps))]
    if row is RowKind.STEP:
        return [(place, step, 0) for place, step in steps]
    return [(place, step, level) for place, step in steps for level in range(max(1, len(case[place].steps[step].confidences)))]


def columns_of(case: Case, keys: Sequence[Key], asked: Sequence[str]) -> dict[str, list[Any]]:
    """The columns that are asked for, rows in the order of `keys`."""
    made = {name: [COLUMN[name](case[place], step, level) for place, step, level in keys] for name in asked if name in COLUMN}
    if "thinking_group" in made:
        # Numbers over the whole batch, so that steps of different episodes are apart.
        made["thinking_group"] = [_STEPS * case[place].number + step if case[place].steps[step].confidences else -1 for place, step, _ in keys]
    return made


COLUMN: Mapping[str, Callable[[Episode, int, int], Any]] = {
    "rewards": lambda episode, step, level: episode.reward,
    "scores": lambda episode, step, level: episode.reward,
    "group": lambda episode, step, level: episode.group,
    "lengths": lambda episode, step, level: float(episode.length),
    "greedy_rewards": lambda episode, step, level: 0.5,
    "trajectory": lambda episode, step, level: episode.number,
    "step_rewards": lambda episode, step, level: episode.steps[step].reward + (episode.reward if step == len(episode.steps) - 1 else 0.0),
    "anchor": lambda episode, step, level: episode.steps[step].anchor,
    "values": lambda episode, step, level: episode.steps[step].value,
    "confidence": lambda episode, step, level: episode.steps[step].confidences[level] if episode.steps[step].confidences else math.nan,
    "cost": lambda episode, step, level: 10.0 * (level + 1),
    "thinking_group": lambda episode, step, level: -1,
    "chosen": lambda episode, step, level: not episode.steps[step].confidences or level == episode.steps[step].chosen,
    "level": lambda episode, step, level: level + 1,
    "base": lambda episode, step, level: episode.reward - (step + 1) / 4,
    "bootstrap": lambda episode, step, level: episode.steps[step].value / 2,
}
"""Each column of the vocabulary."""
RARE_COLUMNS = ("base", "bootstrap")
"""Those that stand in for another, or come from episodes that were cut off: tried besides, and not in every batch."""
REWARD_COLUMNS = ("rewards", "scores", "step_rewards", "values", "greedy_rewards")
"""Columns in units of reward."""
NUMBER_COLUMNS = (*REWARD_COLUMNS, "lengths", *RARE_COLUMNS)
"""Columns that must hold numbers."""
GAP_COLUMNS = ("confidence", "cost")
"""Columns that must hold numbers or NaN, for a level of which nothing is known."""


def cases(row: RowKind, *, least_reward: float | None) -> list[Case]:
    """Batches to try, smallest first: groups of one, constant groups, groups of different sizes, and rewards from 0 and 1 to any quarter."""
    random = np.random.default_rng(7)
    least = -2.0 if least_reward is None else max(least_reward, -2.0)
    found: list[Case] = []
    for sizes in ((1,), (2,), (1, 1), (3,), (2, 1), (2, 2), (4, 1, 2), (3, 3, 3), (5, 1, 4, 2)):
        pools: list[list[float]] = [[0.0, 1.0]] * 4 + [[0.0, 0.5, 1.0]] * 4 + [[least + quarter / 4 for quarter in range(17)]] * 4
        found.append(_case(random, sizes, [1.0], row))
        found += [_case(random, sizes, pool, row) for pool in pools]
    return found


def _case(random: np.random.Generator, sizes: Sequence[int], pool: Sequence[float], row: RowKind) -> Case:
    groups = [group for group, size in enumerate(sizes) for _ in range(size)]
    return tuple(
        Episode(number=number, group=group, reward=float(random.choice(pool)), length=int(random.integers(1, 9)), steps=_steps(random, row))
        for number, group in enumerate(groups)
    )


def _steps(random: np.random.Generator, row: RowKind) -> tuple[Step, ...]:
    if row is RowKind.EPISODE:
        return (Step(),)
    return tuple(
        Step(
            reward=float(random.integers(0, 3)) / 4,
            anchor=("hall", "yard", "shed", None)[int(random.integers(0, 4))],
            value=float(random.integers(0, 5)) / 4,
            confidences=_confidences(random) if row is RowKind.LEVEL else (),
            chosen=int(random.integers(0, 3)),
        )
        for _ in range(int(random.integers(1, 4)))
    )


def _confidences(random: np.random.Generator) -> tuple[float, ...]:
    """Of a step that was expanded, most of the time; of one whose scoring failed for a level; of one that lacks a level; of one that was not expanded."""
    four = (random.integers(1, 8, 4) / 8).tolist()
    kind = random.random()
    if kind < 0.55:
        return tuple(four)
    if kind < 0.7:
        return (*four[:2], math.nan, four[3])
    return tuple(four[:3]) if kind < 0.8 else ()


def interleaved(case: Case, keys: Sequence[Key], seed: int) -> list[Key]:
    """The same rows in another order: episodes mixed with each other, each in its own time order."""
    random = np.random.default_rng(seed)
    turns = random.permutation([place for place, _, _ in keys]).tolist()
    waiting = {place: iter([key for key in keys if key[0] == place]) for place in range(len(case))}
    return [next(waiting[place]) for place in turns]


def smallest(case: Case, fails: Callable[[Case], bool]) -> Case:
    """A batch that still fails and of which no episode, step or digit can be taken away."""
    return shrunk(case, fails, _simpler)


def shrunk(start: T, fails: Callable[[T], bool], simpler: Callable[[T], Iterator[T]]) -> T:
    """Follow simpler ones as long as they fail too. `simpler` must lead to an end."""
    found = start
    while (better := next((other for other in simpler(found) if fails(other)), None)) is not None:
        found = better
    return found


def _simpler(case: Case) -> Iterator[Case]:
    for place in range(len(case)):
        if len(case) > 1:
            yield (*case[:place], *case[place + 1 :])
    for place, episode in enumerate(case):
        for other in _simpler_episodes(episode):
            yield (*case[:place], other, *case[place + 1 :])


def _simpler_episodes(episode: Episode) -> Iterator[Episode]:
    if len(episode.steps) > 1:
        for place in range(len(episode.steps)):
            yield replace(episode, steps=(*episode.steps[:place], *episode.steps[place + 1 :]))
    for reward in (0.0, 1.0):
        # Only towards 0, then 1: otherwise two rewards could turn into each other forever.
        if _weight(reward) < _weight(episode.reward):
            yield replace(episode, reward=reward)
    if episode.length > 1:
        yield replace(episode, length=1)
    for number, step in enumerate(episode.steps):
        for other in _simpler_steps(step):
            yield replace(episode, steps=(*episode.steps[:number], other, *episode.steps[number + 1 :]))


def _simpler_steps(step: Step) -> Iterator[Step]:
    if step.confidences:
        yield replace(step, confidences=(), chosen=0)
    if step.reward != 0:
        yield replace(step, reward=0.0)
    if step.value != 0:
        yield replace(step, value=0.0)
    if step.anchor not in ("hall", None):
        yield replace(step, anchor="hall")


def _weight(reward: float) -> int:
    return 0 if reward == 0 else 1 if reward == 1 else 2
