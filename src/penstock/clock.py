"""Time that is passed in. Whoever waits or writes down a time takes a `Clock`, so that tests and simulations can own it.

Deadlines of what runs in an event loop are kept by an `Alarm`, on the loop's own time.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """Two readings and a wait."""

    def now(self) -> float:
        """Seconds since 1970, for records. May jump."""

    def monotonic(self) -> float:
        """Seconds since some fixed moment, for deadlines. Never goes back."""

    async def sleep(self, seconds: float) -> None:
        """Return when at least `seconds` have passed on the monotonic reading."""


class SystemClock:
    """The machine's time. Its readings are the functions themselves: an agent's turn looks at the clock ten times."""

    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)

    async def sleep(self, seconds: float) -> None:
        """Let other tasks run for `seconds`."""
        await asyncio.sleep(seconds)


class Alarm:
    """Calls `ring` once a moment has passed, unless it is set anew or cleared before. Belongs to the event loop in which it was made.

    Made for deadlines, thousands a second, of which hardly one is ever reached: setting and clearing only note the moment. The loop knows of one moment, the
    earliest that was set, and asks then what is noted.
    """

    __slots__ = ("_at", "_handle", "_knows", "_loop", "_ring")

    def __init__(self, ring: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._ring = ring
        self._at = self._knows = math.inf
        self._handle: asyncio.TimerHandle | None = None

    def set(self, seconds: float) -> None:
        """Ring after so many seconds from now, and not at any moment that was set before."""
        self._at = self._loop.time() + seconds
        if self._at < self._knows:
            self._tell()

    def clear(self) -> None:
        """Do not ring."""
        self._at = math.inf

    def close(self) -> None:
        """As `clear`, and the loop forgets it at once; it may be set again."""
        self._at = self._knows = math.inf
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _tell(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._knows = self._at
        self._handle = self._loop.call_at(self._at, self._wake)

    def _wake(self) -> None:
        self._handle, self._knows = None, math.inf
        if self._loop.time() >= self._at - _TICK_SECONDS:
            self._at = math.inf
            self._ring()
        elif self._at < math.inf:
            self._tell()


_TICK_SECONDS = 0.001
"""Loops count in milliseconds, and may wake that much early."""
