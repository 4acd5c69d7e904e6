"""The waits of an episode: shown, bounded, added up."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from penstock.clock import SystemClock
from penstock.rollout.running import Running
from penstock.rollout.waiting import Waits


class Ticking(SystemClock):
    """One second later each time somebody looks."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        self.seconds += 1.0
        return self.seconds


async def forever() -> None:
    await asyncio.Event().wait()


async def test_waits_are_shown_while_they_last_and_added_up_by_cause() -> None:
    running = Running()
    waits = Waits("a", running, Ticking())
    with running.waiting("a", "the worker", now=0.0):
        for steps, (cause, waits_for) in enumerate([("env", "env.open"), ("reply", "a reply"), ("env", "env.step")]):
            with waits(cause, waits_for, 60.0, steps):
                found = running.find("a", 100.0)
                assert found is not None
                assert (found.waits_for, found.steps, found.age_seconds) == (waits_for, steps, 100.0)
        outer = running.find("a", 100.0)
        assert outer is not None and outer.waits_for == "the worker"
    assert waits.seconds == {"env": 2.0, "reply": 1.0}
    assert len(running) == 0


async def test_a_wait_that_takes_too_long_is_ended_and_the_next_one_is_not() -> None:
    waits = Waits("a", Running(), SystemClock())
    for _ in range(2):
        with pytest.raises(TimeoutError), waits("env", "env.step", 0.01, 0):
            await forever()
        assert waits.expired
        with waits("env", "env.step", 60.0, 0):
            await asyncio.sleep(0)
        assert not waits.expired
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0


async def test_a_timeout_of_what_is_waited_for_is_told_from_our_own() -> None:
    waits = Waits("a", Running(), SystemClock())
    with pytest.raises(TimeoutError, match="of mine"), waits("env", "env.step", 60.0, 0):
        raise TimeoutError("of mine")
    assert not waits.expired


async def test_cancelling_the_episode_is_no_timeout() -> None:
    running = Running()
    waits = Waits("a", running, SystemClock())

    async def episode() -> None:
        with waits("env", "env.step", 60.0, 0):
            await forever()

    task = asyncio.create_task(episode())
    await asyncio.sleep(0)
    assert len(running) == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not waits.expired and len(running) == 0


async def test_both_at_once_is_a_cancellation() -> None:
    waits = Waits("a", Running(), SystemClock())

    async def episode() -> None:
        with waits("env", "env.step", 0.01, 0):
            try:
                await forever()
            finally:  # told to end by its deadline, and meanwhile by somebody else
                task.cancel()

    task = asyncio.create_task(episode())
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_environment_that_does_not_heed_its_deadline_keeps_what_it_gives() -> None:
    waits = Waits("a", Running(), SystemClock())
    with waits("env", "env.step", 0.01, 0), contextlib.suppress(asyncio.CancelledError):
        await forever()
    assert waits.expired
    await asyncio.sleep(0)  # nothing is left over that would end a later wait


async def test_a_deadline_that_was_met_ends_nothing_later() -> None:
    waits = Waits("a", Running(), SystemClock())
    with waits("env", "env.step", 0.01, 0):
        await asyncio.sleep(0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await forever()


async def test_an_episode_that_was_cancelled_still_has_deadlines_while_it_tidies_up() -> None:
    waits = Waits("a", Running(), SystemClock())

    async def episode() -> None:
        try:
            await forever()
        except asyncio.CancelledError:
            with waits("env", "env.close", 0.01, 0):
                await forever()

    task = asyncio.create_task(episode())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(TimeoutError):
        await task
