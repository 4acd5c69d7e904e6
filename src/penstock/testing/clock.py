"""A clock that stands still until it is advanced by hand."""

from __future__ import annotations

import asyncio
import heapq
from itertools import count

_TURNS_AFTER_A_WAKE = 32
"""Turns of the event loop that tasks get after each wake-up. A woken task may pass its news through some others before one sleeps again."""


class FakeClock:
    """Time for tests. Nothing passes but by `advance` and `jump`.

    Sleepers wake in the order of their deadlines; those with the same deadline in the order in which they fell asleep.
    """

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self._now = now
        self._monotonic = 0.0
        self._asleep: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = count()

    def now(self) -> float:
        """Seconds since 1970."""
        return self._now

    def monotonic(self) -> float:
        """Seconds that were advanced so far."""
        return self._monotonic

    @property
    def num_sleepers(self) -> int:
        """Tasks that wait for this clock."""
        return sum(not woken.done() for _, _, woken in self._asleep)

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock was advanced by `seconds`; for 0 or less, let other tasks run once."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken = asyncio.get_running_loop().create_future()
        heapq.heappush(self._asleep, (self._monotonic + seconds, next(self._numbers), woken))
        await woken

    async def advance(self, seconds: float) -> None:
        """Let `seconds` pass, stopping at each deadline on the way so that what wakes there sees its own time and may sleep again."""
        if seconds < 0:
            raise ValueError(f"time does not go back: got {seconds} seconds")
        end = self._monotonic + seconds
        await self._settle()
        while self._asleep and self._asleep[0][0] <= end:
            deadline, _, woken = heapq.heappop(self._asleep)
            if woken.done():  # its task was cancelled
                continue
            self._move_to(deadline)
            woken.set_result(None)
            await self._settle()
        self._move_to(end)

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward or back, as an administrator does. Wakes nobody: waits are measured on the monotonic reading."""
        self._now += seconds

    def _move_to(self, moment: float) -> None:
        self._now += moment - self._monotonic
        self._monotonic = moment

    async def _settle(self) -> None:
        for _ in range(_TURNS_AFTER_A_WAKE):
            await asyncio.sleep(0)
