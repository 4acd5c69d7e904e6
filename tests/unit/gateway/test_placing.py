"""A gateway in a worker: its requests go where the worker places them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import numpy as np
import pytest
import pytest_asyncio
from tests.unit.rollout.stub_engine import StubEngine

from penstock.errors import BadRequestError, InfraError
from penstock.gateway.engine import HttpEngine
from penstock.gateway.sampling import Order
from penstock.inference.client import Continuation, InferenceClient
from penstock.rollout.servers import PooledSampler, Servers

PROMPT = np.array([*b"ab"], np.int32)


@dataclass
class Stage:
    """Two servers, the worker's own requests and those of its agents."""

    stubs: list[StubEngine]
    engine: HttpEngine
    sampler: PooledSampler

    async def ask(self, affinity: str, seconds: float = 30.0) -> str:
        order = Order(ids=PROMPT, num_choices=1, max_tokens=8, temperature=1.0, seed=1, affinity=affinity, request_id=affinity)
        (sampled,) = await self.engine.sample(order, deadline_seconds=seconds)
        return bytes(id for id in sampled.ids if id < 256).decode()

    def asked(self) -> list[int]:
        return [len(stub.requests) for stub in self.stubs]


@pytest_asyncio.fixture
async def stage() -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        stubs = [await stack.enter_async_context(StubEngine(lambda text: "ok").running()) for _ in range(2)]
        urls = [stub.url for stub in stubs]
        servers = Servers([await stack.enter_async_context(InferenceClient(url)) for url in urls])
        engine = await stack.enter_async_context(HttpEngine(urls, placing=servers.placing("agents")))
        yield Stage(stubs, engine, servers.sampler("env"))


async def test_sessions_are_spread_by_load_and_each_stays_where_it_began(stage: Stage) -> None:
    assert await asyncio.gather(*(stage.ask(name) for name in "abcd")) == ["ok"] * 4
    assert stage.asked() == [2, 2]
    for _ in range(3):
        await stage.ask("b")
    assert stage.asked() == [2, 5]


async def test_agents_and_episodes_of_a_worker_count_as_one_load(stage: Stage) -> None:
    asked = [
        stage.sampler.complete(Continuation(ids=PROMPT, max_tokens=8, affinity="x")),
        stage.ask("a"),
        stage.sampler.complete(Continuation(ids=PROMPT, max_tokens=8, affinity="y")),
        stage.ask("b"),
    ]
    await asyncio.gather(*asked)
    assert stage.asked() == [2, 2]


@pytest.mark.parametrize("fault", ["die", "garbage", "429"])
async def test_what_one_server_does_not_answer_another_does(stage: Stage, fault: str) -> None:
    assert await stage.ask("a") == "ok"
    stage.stubs[0].faults.append(fault)
    assert await stage.ask("a") == "ok"
    assert sum(stage.asked()) == 3


async def test_a_session_that_nobody_answers_is_told_by_its_deadline(stage: Stage) -> None:
    for stub in stage.stubs:
        stub.always = "429"
    with pytest.raises(InfraError, match="no server"):
        await stage.ask("a", seconds=0.3)


async def test_a_refusal_is_told_at_once(stage: Stage) -> None:
    stage.stubs[0].faults.append("refuse")
    with pytest.raises(BadRequestError, match="too long"):
        await stage.ask("a")
    assert stage.asked() == [1, 0]
