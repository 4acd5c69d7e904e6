"""What a worker may hold, and when it has to leave."""

from __future__ import annotations

import asyncio
import os
import threading
import time

import pytest

from penstock.clock import SystemClock
from penstock.errors import ConfigError
from penstock.process.memory import held_bytes
from penstock.process.threads import Threads, num_given_up
from penstock.rollout.bounds import MOST_GIVEN_UP, Bounds, Own


def test_a_worker_that_holds_too_much_before_its_first_episode_is_told_which_setting_to_change() -> None:
    ballast = bytearray(300 << 20)
    told = r"envs\.a\.memory_mb \+ envs\.b\.memory_mb: the worker holds \d+ MB before its first episode, and may hold 256 MB"
    with pytest.raises(ConfigError, match=told), Bounds("worker", {"a": 128, "b": 128}).hold():
        pytest.fail("it holds more than it may")
    assert len(ballast) == 300 << 20


async def test_a_worker_leaves_when_it_holds_too_much() -> None:
    told: list[int] = []
    ballast = bytearray(200 << 20)
    trouble = await Bounds("worker", {"digits": 128}).broken(SystemClock(), told.append)
    assert (trouble.kind, len(told), told[0] > 200) == ("memory", 1, True)
    assert f"holds {told[0]} MB of memory, and may hold 128 MB (envs.digits.memory_mb)" in trouble.sentence
    assert len(ballast) == 200 << 20


async def test_what_a_process_needs_for_itself_comes_on_top_and_is_told() -> None:
    ballast = bytearray(200 << 20)
    held = held_bytes(os.getpid())
    needed = [held]
    bounds = Bounds("evaluation", {"digits": 128}, Own(most=128 << 20, needed=lambda: needed[0]))
    with bounds.hold():
        assert len(bytearray(256 << 20)) == 256 << 20, "what it may come to need is not refused"
        with pytest.raises(MemoryError):
            bytearray(512 << 20)
    needed[0] = held - (150 << 20)
    trouble = await bounds.broken(SystemClock())
    own_mb = needed[0] >> 20
    assert f"and may hold {own_mb + 128} MB ({own_mb} for itself, and envs.digits.memory_mb)" in trouble.sentence
    assert len(ballast) == 200 << 20


def test_a_worker_leaves_when_too_many_calls_that_were_given_up_do_not_return() -> None:
    end, started = threading.Event(), threading.Barrier(MOST_GIVEN_UP + 2, timeout=30)

    def hang() -> None:
        started.wait()
        end.wait(30)

    threads = Threads(MOST_GIVEN_UP + 1)
    calls = [threads.submit(hang) for _ in range(MOST_GIVEN_UP + 1)]
    started.wait()
    for call in calls:
        call.cancel()
    try:
        trouble = asyncio.run(Bounds("worker", {"digits": 1 << 20}).broken(SystemClock()))
        assert (trouble.kind, trouble.sentence.split()[0]) == ("threads", str(MOST_GIVEN_UP + 1))
    finally:
        end.set()
    deadline = time.monotonic() + 30
    while num_given_up() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert num_given_up() == 0
