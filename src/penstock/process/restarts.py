"""What happens after a child has died. Pure: times are passed in."""

from __future__ import annotations

import math
import signal
from collections.abc import Sequence
from dataclasses import dataclass

EXIT_CONFIG = 2
"""A setting is wrong: starting again would end the same way."""
EXIT_FINAL = 3
"""The child has found something that a new start would find again; the last line of its log says what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """How often a child may die."""

    limit: int = 5
    """Deaths without progress in between, within `within_seconds`, that end it."""
    within_seconds: float = 300.0
    """Long enough that a part which takes a minute to start, and then always dies, is given up too."""
    pauses_seconds: tuple[float, ...] = (0.0, 0.5, 1.0, 2.0, 4.0)
    """Pause before the next start after the first, second, ... of them; the last one is repeated."""


@dataclass(frozen=True, slots=True)
class Restart:
    """Start it again."""

    pause_seconds: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Do not."""

    reason: str


def after_death(exit_code: int, deaths_seconds: Sequence[float], policy: RestartPolicy, *, progress_seconds: float = -math.inf) -> Restart | GiveUp:
    """What to do about a child that has just ended with `exit_code`.

    `deaths_seconds` are the times of its deaths, this one last; `progress_seconds` is when all of them together last got anything done. Progress forgives
    deaths but does not hurry: a child that dies all the time while others work is started with the longest pause.

    >>> after_death(-9, [10.0, 12.0], RestartPolicy())
    Restart(pause_seconds=0.5)
    >>> after_death(1, [1.0, 2.0, 3.0], RestartPolicy(limit=3))
    GiveUp(reason='died 3 times within 300 s without progress, the last time with exit 1')
    """
    if exit_code in (EXIT_CONFIG, EXIT_FINAL):
        return GiveUp(f"ended with {describe_exit(exit_code)}, which starting again does not mend")
    recent = [when for when in deaths_seconds if deaths_seconds[-1] - when <= policy.within_seconds]
    unforgiven = sum(when > progress_seconds for when in recent)
    if unforgiven >= policy.limit:
        return GiveUp(f"died {unforgiven} times within {policy.within_seconds:g} s without progress, the last time with {describe_exit(exit_code)}")
    return Restart(policy.pauses_seconds[min(len(recent), len(policy.pauses_seconds)) - 1])


def describe_exit(exit_code: int) -> str:
    """An exit code as people say it.

    >>> describe_exit(-9), describe_exit(1)
    ('SIGKILL', 'exit 1')
    """
    return signal.Signals(-exit_code).name if exit_code < 0 else f"exit {exit_code}"
