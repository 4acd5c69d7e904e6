"""What a worker may hold, and when it has to leave."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest

from penstock.clock import SystemClock
from penstock.errors import ConfigError
from penstock.process.threads import Threads, num_given_up
from penstock.rollout import EnvConfig, WorkerConfig
from penstock.rollout.bounds import MOST_GIVEN_UP, Bounds


def config(name: str = "digits", memory_mb: int = 1 << 20) -> WorkerConfig:
    env = EnvConfig(kind="sort", memory_mb=memory_mb)
    return WorkerConfig(buffer_url="http://127.0.0.1:9", run="run", servers=("http://127.0.0.1:9",), model=Path("model"), environment=name, env=env)


def test_a_worker_that_holds_too_much_before_its_first_episode_is_told_which_setting_to_change() -> None:
    ballast = bytearray(300 << 20)
    with pytest.raises(ConfigError, match=r"envs\.a\.memory_mb \+ envs\.b\.memory_mb: the worker holds \d+ MB before its first episode, and may hold 256 MB"):
        Bounds([config("a", 128), config("b", 128)]).begin()
    assert len(ballast) == 300 << 20


async def test_a_worker_leaves_when_it_holds_too_much() -> None:
    told: list[int] = []
    ballast = bytearray(200 << 20)
    trouble = await Bounds([config(memory_mb=128)]).broken(SystemClock(), told.append)
    assert (trouble.kind, len(told), told[0] > 200) == ("memory", 1, True)
    assert f"holds {told[0]} MB of memory, and may hold 128 MB (envs.digits.memory_mb)" in trouble.sentence
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
        trouble = asyncio.run(Bounds([config()]).broken(SystemClock(), lambda held_mb: None))
        assert (trouble.kind, trouble.sentence.split()[0]) == ("threads", str(MOST_GIVEN_UP + 1))
    finally:
        end.set()
    deadline = time.monotonic() + 30
    while num_given_up() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert num_given_up() == 0
