"""Time that tests own."""

from __future__ import annotations

import asyncio
import gc
import math
import weakref

import pytest

from penstock.clock import Alarm, Clock, SystemClock
from penstock.testing.clock import FakeClock


@pytest.mark.parametrize("make", [SystemClock, FakeClock])
async def test_every_clock_reads_wall_time_and_a_time_that_never_goes_back(make: type[Clock]) -> None:
    clock: Clock = make()
    before = clock.monotonic()
    await clock.sleep(0)
    assert clock.monotonic() >= before
    assert clock.now() > 1_600_000_000


async def test_sleepers_wake_in_the_order_of_their_deadlines() -> None:
    clock, woken = FakeClock(), []

    async def sleeper(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append((name, clock.monotonic()))

    async with asyncio.TaskGroup() as tasks:
        for name, seconds in (("late", 3.0), ("first", 1.0), ("same", 2.0), ("same again", 2.0)):
            tasks.create_task(sleeper(name, seconds))
        await clock.advance(2.5)
        assert woken == [("first", 1.0), ("same", 2.0), ("same again", 2.0)]
        assert clock.num_sleepers == 1
        await clock.advance(0.5)
    assert woken[-1] == ("late", 3.0)


async def test_a_long_advance_stops_at_every_deadline_on_the_way() -> None:
    clock, beats = FakeClock(), []

    async def beat() -> None:
        for _ in range(3):
            await clock.sleep(2.0)
            beats.append(clock.monotonic())

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(beat())
        await clock.advance(100.0)
    assert beats == [2.0, 4.0, 6.0]
    assert clock.monotonic() == 100.0


async def test_a_cancelled_sleeper_is_forgotten() -> None:
    clock = FakeClock()
    task = asyncio.create_task(clock.sleep(1.0))
    await clock.advance(0.5)
    task.cancel()
    await clock.advance(5.0)
    assert task.cancelled() and clock.num_sleepers == 0


async def test_the_wall_may_jump_without_waking_anybody() -> None:
    clock = FakeClock(now=1000.0)
    task = asyncio.create_task(clock.sleep(10.0))
    await clock.advance(1.0)
    clock.jump(-500.0)
    assert (clock.now(), clock.monotonic(), task.done()) == (501.0, 1.0, False)
    await clock.advance(9.0)
    assert task.done()


async def test_time_does_not_go_back() -> None:
    with pytest.raises(ValueError, match="does not go back"):
        await FakeClock().advance(-1.0)


class Bell:
    """An alarm, and how often and when it rang."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._start = self._loop.time()
        self._rang = asyncio.Event()
        self.rings: list[float] = []
        self.alarm = Alarm(self._ring)

    def _ring(self) -> None:
        self.rings.append(self._loop.time() - self._start)
        self._rang.set()

    async def ringing(self) -> None:
        async with asyncio.timeout(10.0):
            await self._rang.wait()


@pytest.mark.parametrize("earlier_seconds", [60.0, 0.001])
async def test_an_alarm_rings_once_at_the_moment_that_was_set_last(earlier_seconds: float) -> None:
    bell = Bell()
    bell.alarm.set(earlier_seconds)
    bell.alarm.set(0.03)
    await bell.ringing()
    assert len(bell.rings) == 1 and bell.rings[0] >= 0.028


@pytest.mark.parametrize("silence", ["clear", "close"])
async def test_an_alarm_that_was_silenced_does_not_ring_and_can_be_set_again(silence: str) -> None:
    silent, other = Bell(), Bell()
    silent.alarm.set(0.001)
    getattr(silent.alarm, silence)()
    other.alarm.set(0.02)
    await other.ringing()
    assert silent.rings == []
    silent.alarm.set(0.001)
    await silent.ringing()
    assert len(silent.rings) == 1


async def test_an_alarm_set_to_never_does_not_wake_the_loop() -> None:
    bell, other = Bell(), Bell()
    bell.alarm.set(math.inf)
    other.alarm.set(0.005)
    await other.ringing()
    assert bell.rings == []


@pytest.mark.parametrize(("silence", "seconds"), [("close", 60.0), ("clear", 0.001)])
async def test_the_loop_forgets_an_alarm_that_was_closed_at_once_and_one_that_was_cleared_at_its_moment(silence: str, seconds: float) -> None:
    bell, other = Bell(), Bell()
    bell.alarm.set(seconds)
    getattr(bell.alarm, silence)()
    other.alarm.set(0.01)
    await other.ringing()
    known = weakref.ref(bell)
    del bell
    gc.collect()
    assert known() is None
