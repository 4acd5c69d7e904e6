"""A worker waits for a server before it claims anything."""

from __future__ import annotations

import asyncio
import socket

import pytest
from tests.unit.rollout.stub_engine import StubEngine

from penstock.clock import SystemClock
from penstock.errors import ProcessError
from penstock.process.ports import free_ports
from penstock.rollout.waking import one_awake


async def test_one_server_that_answers_anything_is_enough() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with StubEngine(lambda _: "1").running() as engine:
            await one_awake([f"http://127.0.0.1:{free_ports(1)[0]}", engine.url], SystemClock(), 20.0)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(one_awake([f"http://127.0.0.1:{silent.getsockname()[1]}"], SystemClock()), 0.2)


async def test_servers_that_do_not_answer_are_named_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    url = f"http://127.0.0.1:{free_ports(1)[0]}"
    with pytest.raises(ProcessError, match=rf"no inference server answers: {url} \(Cannot connect .*\); nowhere.* \(.*\); that was so for 0 s"):
        await one_awake([url, "nowhere"], SystemClock(), 0.0)
