"""Bounds of a process in which environments live: what they leak, memory and threads, stays there until it ends."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from penstock.clock import Clock
from penstock.errors import ConfigError
from penstock.process.memory import held_bytes, limited_growth
from penstock.process.threads import num_given_up

LOOK_SECONDS = 1.0
MOST_GIVEN_UP = 64
"""Calls in threads that do not return, though nobody waits for them any more: each may hold anything."""
_MARGIN = 1.25
"""A process that holds too much leaves; whoever asks for so much more at once, before anybody has looked, is refused it."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a process has to leave."""

    kind: str
    """In one word, for metrics: its episodes have failed of it."""
    sentence: str


@dataclass(frozen=True, slots=True)
class Own:
    """What a process holds for itself, in bytes; its environments' memory comes on top."""

    most: int = 0
    """That it may come to need."""
    needed: Callable[[], int] = lambda: 0
    """That it has needed so far."""


class Bounds:
    """Of one process, with what its environments have started."""

    def __init__(self, who: str, memory_mb: Mapping[str, int], own: Own | None = None) -> None:
        """`memory_mb`: what is allowed for each environment, by name. Without `own`, what the process itself needs is a part of that."""
        self._who, self._allowed_mb = who, sum(memory_mb.values())
        self._own = own or Own()
        self._keys = " + ".join(f"envs.{name}.memory_mb" for name in memory_mb)

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """For the time of a block, a single request for far too much is a `MemoryError` of whoever asks. Raises `ConfigError` if the bounds are broken before
        anything is played: a new start would find the same."""
        held_mb, most_mb = _held_mb(), self._most_mb
        if held_mb > most_mb:
            raise ConfigError(f"{self._keys}: the {self._who} holds {held_mb} MB before its first episode, and may hold {most_mb} MB; allow it more")
        with limited_growth((int(_MARGIN * self._allowed_mb) << 20) + self._own.most):
            yield

    async def broken(self, clock: Clock, tell: Callable[[int], None] = lambda held_mb: None) -> Trouble:
        """Wait until one of them is broken, and say which. Meanwhile `tell` is called with what the process holds, in megabytes."""
        while (trouble := self.trouble(tell)) is None:
            await clock.sleep(LOOK_SECONDS)
        return trouble

    def trouble(self, tell: Callable[[int], None] = lambda held_mb: None) -> Trouble | None:
        """Which of them is broken now, if one is. See `broken`."""
        held_mb, most_mb = _held_mb(), self._most_mb
        tell(held_mb)
        if held_mb > most_mb:
            sentence = f"the {self._who} holds {held_mb} MB of memory, and may hold {most_mb} MB ({self._reason}): an environment keeps too much, or leaks"
            return Trouble("memory", sentence)
        if num_given_up() > MOST_GIVEN_UP:
            sentence = f"{num_given_up()} calls of environments, tools or agents, in threads, were given up and still do not return: something hangs"
            return Trouble("threads", sentence)
        return None

    @property
    def _own_mb(self) -> int:
        return self._own.needed() >> 20

    @property
    def _most_mb(self) -> int:
        return self._allowed_mb + self._own_mb

    @property
    def _reason(self) -> str:
        return f"{self._own_mb} for itself, and {self._keys}" if self._own_mb else self._keys


def _held_mb() -> int:
    return held_bytes(os.getpid()) >> 20
