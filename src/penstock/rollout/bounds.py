"""Bounds of a worker: environments live in its process, and what they leak, memory and threads, stays there until it ends."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.clock import Clock
from penstock.errors import ConfigError
from penstock.process.memory import held_bytes, limit_growth
from penstock.process.threads import num_given_up
from penstock.rollout.config import WorkerConfig

LOOK_SECONDS = 1.0
MOST_GIVEN_UP = 64
"""Calls in threads that do not return, though nobody waits for them any more: each may hold anything."""
_MARGIN = 1.25
"""A worker that holds too much leaves; whoever asks for so much more at once, before anybody has looked, is refused it."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a worker has to leave."""

    kind: str
    """In one word, for metrics: its episodes have failed of it."""
    sentence: str


class Bounds:
    """Of one worker's process, with what its environments have started."""

    def __init__(self, configs: Sequence[WorkerConfig]) -> None:
        self._most_mb = sum(config.env.memory_mb for config in configs)
        self._keys = " + ".join(f"envs.{config.environment}.memory_mb" for config in configs)

    def begin(self) -> None:
        """Hold from now on: a single request for far too much is a `MemoryError` of whoever asks. Raises `ConfigError` if they are broken before anything is
        played: a new start would find the same."""
        held_mb = _held_mb()
        if held_mb > self._most_mb:
            raise ConfigError(f"{self._keys}: the worker holds {held_mb} MB before its first episode, and may hold {self._most_mb} MB; allow it more")
        limit_growth(int(_MARGIN * self._most_mb) << 20)

    async def broken(self, clock: Clock, tell: Callable[[int], None]) -> Trouble:
        """Wait until one of them is broken, and say which. Meanwhile `tell` is called with what the worker holds, in megabytes."""
        while True:
            held_mb = _held_mb()
            tell(held_mb)
            if held_mb > self._most_mb:
                sentence = f"the worker holds {held_mb} MB of memory, and may hold {self._most_mb} MB ({self._keys}): an environment keeps too much, or leaks"
                return Trouble("memory", sentence)
            if num_given_up() > MOST_GIVEN_UP:
                sentence = f"{num_given_up()} calls of environments, tools or agents, in threads, were given up and still do not return: something hangs"
                return Trouble("threads", sentence)
            await clock.sleep(LOOK_SECONDS)


def _held_mb() -> int:
    return held_bytes(os.getpid()) >> 20
