"""Several servers as one, over real connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio
from tests.unit.rollout.stub_engine import StubEngine

from penstock.errors import InfraError, InvalidError
from penstock.inference.client import Continuation, InferenceClient
from penstock.rollout.servers import Servers

PROMPT = list(b"ab")


class Pool:
    """Stub engines with a client each, and all of them as one."""

    def __init__(self, engines: list[StubEngine], servers: Servers) -> None:
        self.engines, self.servers = engines, servers
        self.waits: list[float] = []
        self.sampler = servers.sampler("env", waited=self.waits.append)

    async def ask(self, affinity: str | None = None, **options: Any) -> str:
        return (await self.sampler.complete(Continuation(ids=PROMPT, max_tokens=8, affinity=affinity), **options)).text

    def asked(self) -> list[int]:
        return [len(engine.requests) for engine in self.engines]


@pytest_asyncio.fixture
async def pool() -> AsyncIterator[Pool]:
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(StubEngine(lambda text: "ok").running()) for _ in range(2)]
        clients = [await stack.enter_async_context(InferenceClient(engine.url)) for engine in engines]
        yield Pool(engines, Servers(clients))


async def test_episodes_are_spread_and_each_stays_where_it_began(pool: Pool) -> None:
    assert await asyncio.gather(*(pool.ask(name) for name in "abcd")) == ["ok"] * 4
    assert pool.asked() == [2, 2]
    for _ in range(3):
        await pool.ask("b")
    assert pool.asked() == [2, 5]
    assert pool.waits == []


async def test_what_a_dying_server_had_is_answered_by_another_and_stays_there(pool: Pool) -> None:
    await pool.ask("a")
    pool.engines[0].always = "die"
    assert await pool.ask("a") == "ok"
    pool.engines[0].always = ""
    assert await pool.ask("a") == "ok"
    assert pool.asked() == [2, 2]


async def test_a_server_that_answers_garbage_does_not_draw_all_the_others(pool: Pool) -> None:
    pool.engines[0].always = "garbage"
    assert await asyncio.gather(*(pool.ask(str(number)) for number in range(20))) == ["ok"] * 20
    assert pool.asked()[0] == 10  # those that were spread before its first answer
    await asyncio.gather(*(pool.ask(str(number)) for number in range(20)))
    assert pool.asked() == [10, 40]


async def test_requests_wait_while_all_servers_are_full_and_are_all_answered(pool: Pool) -> None:
    for engine in pool.engines:
        engine.faults.extend(["429"] * 3)
    assert await asyncio.gather(*(pool.ask(str(number)) for number in range(20))) == ["ok"] * 20
    assert len(pool.waits) >= 6
    assert sum(pool.asked()) == 26


@pytest.mark.parametrize(("fault", "told"), [("garbage", "cannot be read"), ("hang", "within 0.3 s"), ("429", "no server"), ("die", "no server")])
async def test_a_request_that_nobody_answers_fails_by_its_deadline(pool: Pool, fault: str, told: str) -> None:
    for engine in pool.engines:
        engine.always = fault
    with pytest.raises(InfraError, match=told):
        await pool.ask("a", deadline_seconds=0.3 if fault != "garbage" else 30.0)
    for engine in pool.engines:
        engine.always = ""
    assert await pool.ask("a", deadline_seconds=30.0) == "ok"


async def test_a_refusal_is_told_at_once_and_says_nothing_about_the_server(pool: Pool) -> None:
    pool.engines[0].faults.append("refuse")
    with pytest.raises(InvalidError, match="too long"):
        await pool.ask("a")
    assert await pool.ask("a") == "ok"
    assert pool.asked() == [2, 0]


async def test_whoever_no_longer_waits_leaves_no_place_taken(pool: Pool) -> None:
    for engine in pool.engines:
        engine.always = "429"
    asked = [asyncio.create_task(pool.ask(str(number))) for number in range(8)]
    await asyncio.wait(asked, timeout=0.05)
    for task in asked[1:]:
        task.cancel()
    for engine in pool.engines:
        engine.always = ""
    assert await asked[0] == "ok"
    await asyncio.gather(*asked, return_exceptions=True)
    assert await asyncio.gather(*(pool.ask() for _ in range(8))) == ["ok"] * 8
