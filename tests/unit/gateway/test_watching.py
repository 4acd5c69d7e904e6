"""Waits that end when a client leaves."""

from __future__ import annotations

import asyncio

import pytest

from penstock.gateway.watching import BreakingOff


async def _broken_off(asked: asyncio.Event, *, seconds: float) -> bool:
    """Wait for what never comes, and tell whether it was given up."""

    async def ask() -> None:
        asked.set()
        await asyncio.Event().wait()

    breaking = BreakingOff(ask, seconds=seconds)
    breaking.begin()
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        if not breaking.has_given_up():
            raise
        return True
    finally:
        await breaking.end()
    return False


async def test_what_does_not_end_when_it_is_asked_to_is_given_up_and_its_task_goes_on() -> None:
    asked = asyncio.Event()
    task = asyncio.create_task(_broken_off(asked, seconds=0.001))
    assert await task
    assert asked.is_set()
    assert task.cancelling() == 0


async def test_a_cancellation_by_somebody_else_is_theirs() -> None:
    asked = asyncio.Event()
    task = asyncio.create_task(_broken_off(asked, seconds=60.0))
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_what_ends_in_time_is_not_cancelled_later() -> None:
    ended = asyncio.Event()

    async def ask() -> None:
        ended.set()

    breaking = BreakingOff(ask, seconds=0.001)
    breaking.begin()
    await ended.wait()
    await breaking.end()
    loop = asyncio.get_running_loop()
    later = loop.create_future()
    loop.call_later(0.002, later.set_result, None)
    await later
    assert not breaking.has_given_up()
