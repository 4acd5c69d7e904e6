"""Time that is passed in. Whoever waits or writes down a time takes a `Clock`, so that tests and simulations can own it."""

from __future__ import annotations

import asyncio
import time
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
    """The machine's time."""

    def now(self) -> float:
        """Seconds since 1970."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds since the machine started, or some other fixed moment."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Let other tasks run for `seconds`."""
        await asyncio.sleep(seconds)
