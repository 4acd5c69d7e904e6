"""Agents that a worker starts, against a stub engine: whatever they do, there is a rollout."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from tests.unit.gateway.stub_engine import StubEngine

from penstock.chat import ChatTemplate, write_byte_tokenizer
from penstock.errors import ConfigError, EnvError
from penstock.gateway.engine import HttpEngine
from penstock.gateway.local import AgentHost, agent_host, load_agent
from penstock.gateway.settings import AgentSettings
from penstock.trace import samples
from penstock.types import Problem, RolloutStatus

PROBLEM = Problem(id="p", environment="env", prompt="2+2?", ground_truth="4")


@dataclass(frozen=True)
class Ticket:
    run: str = "run"
    environment: str = "env"
    group_id: str = "g/0/0"
    member: int = 0
    retry: int = 1
    seed: int = 7


@pytest.fixture(scope="module")
def engine() -> Iterator[StubEngine]:
    stub = StubEngine(lambda prompt, index: "4")
    yield stub
    stub.close()


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> ChatTemplate:
    directory = tmp_path_factory.mktemp("model")
    write_byte_tokenizer(directory, "chatml")
    return ChatTemplate.load(directory)


@asynccontextmanager
async def host(agent: Callable[[Problem, str], Any], template: ChatTemplate, engine: StubEngine, **settings: Any) -> AsyncIterator[AgentHost]:
    async with HttpEngine([engine.url]) as sampler, agent_host(agent, template, sampler, AgentSettings(**settings)) as made:
        yield made


async def answer(problem: Problem, base_url: str) -> float:
    async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        reply = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": str(problem.prompt)}], temperature=0.3)
    return float(reply.choices[0].message.content == problem.ground_truth)


def answer_in_a_thread(problem: Problem, base_url: str) -> dict[str, float]:
    with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        reply = client.chat.completions.create(model="m", messages=[{"role": "user", "content": str(problem.prompt)}])
    return {"right": float(reply.choices[0].message.content == problem.ground_truth), "short": 0.5}


async def test_the_session_of_an_episode_that_was_cancelled_is_over(template: ChatTemplate, engine: StubEngine) -> None:
    started: asyncio.Queue[str] = asyncio.Queue()

    async def hang(problem: Problem, base_url: str) -> float:
        started.put_nowait(base_url)
        await asyncio.Event().wait()
        return 1.0

    # Four sessions for each place are the most that may be open at once.
    async with host(hang, template, engine, concurrency=1) as agents, aiohttp.ClientSession() as client:
        for retry in range(5):
            playing = asyncio.create_task(agents.play(Ticket(retry=retry), PROBLEM))
            base_url = await started.get()
            playing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await playing
            async with client.post(f"{base_url}/chat/completions", json={"model": "m", "messages": [{"role": "user", "content": "?"}]}) as answer:
                assert answer.status == 409


async def test_an_agent_fills_its_slot_with_what_the_engine_sampled(template: ChatTemplate, engine: StubEngine) -> None:
    async with host(answer, template, engine, temperature=1.0) as agents:
        rollout = await agents.play(Ticket(), PROBLEM)
    assert (rollout.rollout_uid, rollout.status, rollout.reward, rollout.rewards) == ("g/0/0:0:1", RolloutStatus.OK, 1.0, {"reward": 1.0})
    (sample,) = samples(rollout)
    assert sample.ids[sample.loss_mask].tolist() == [ord("4"), 260]
    # The run's temperature, not the agent's.
    assert engine.requests[-1]["temperature"] == 1.0


async def test_agents_run_at_once_also_those_that_are_no_coroutines(template: ChatTemplate, engine: StubEngine) -> None:
    async with host(answer_in_a_thread, template, engine, concurrency=8) as agents:
        rollouts = await asyncio.gather(*(agents.play(Ticket(member=member), PROBLEM) for member in range(8)))
    assert [rollout.member for rollout in rollouts] == list(range(8))
    assert {rollout.reward for rollout in rollouts} == {1.5}


def gives(value: Any) -> Callable[[Problem, str], Any]:
    async def agent(problem: Problem, base_url: str) -> Any:
        await answer(problem, base_url)
        if isinstance(value, BaseException):
            raise value
        return value

    return agent


async def hangs(problem: Problem, base_url: str) -> float:
    await asyncio.Event().wait()
    return 1.0


async def asks_for_ever(problem: Problem, base_url: str) -> float:
    while True:
        await answer(problem, base_url)


async def asks_until_refused(problem: Problem, base_url: str) -> float:
    for _ in range(10):
        try:
            await answer(problem, base_url)
        except openai.BadRequestError:
            break
    return 0.25


@pytest.mark.parametrize(
    ("agent", "status", "error"),
    [
        (gives(float("nan")), RolloutStatus.INFRA_ERROR, "reward"),
        (gives("1"), RolloutStatus.INFRA_ERROR, "reward"),
        (gives(True), RolloutStatus.INFRA_ERROR, "reward"),
        (gives(None), RolloutStatus.INFRA_ERROR, "reward"),
        (gives({}), RolloutStatus.INFRA_ERROR, "reward"),
        (gives({"a b": 1.0}), RolloutStatus.INFRA_ERROR, "reward"),
        (gives({"a": 1e308, "b": 1e308}), RolloutStatus.INFRA_ERROR, "reward"),
        (gives(RuntimeError("boom \ud800")), RolloutStatus.INFRA_ERROR, "agent_raised"),
        (gives(SystemExit(1)), RolloutStatus.INFRA_ERROR, "agent_raised"),
        (gives(asyncio.CancelledError()), RolloutStatus.INFRA_ERROR, "agent_raised"),
        (gives(EnvError("no such task")), RolloutStatus.ENV_ERROR, "env_error"),
        (hangs, RolloutStatus.INFRA_ERROR, "agent_timeout"),
        (asks_for_ever, RolloutStatus.ENV_ERROR, "max_turns"),
        (asks_until_refused, RolloutStatus.TRUNCATED, None),
    ],
)
async def test_what_an_agent_does_wrong_is_a_status_and_never_a_reward(
    template: ChatTemplate, engine: StubEngine, agent: Callable[[Problem, str], Any], status: RolloutStatus, error: str | None
) -> None:
    async with host(agent, template, engine, episode_seconds=0.5 if agent is hangs else 30.0, max_turns=2) as agents:
        rollout = await agents.play(Ticket(), PROBLEM)
    assert (rollout.status, rollout.metadata.get("error")) == (status, error), rollout.failure
    assert rollout.reward == (0.25 if status is RolloutStatus.TRUNCATED else None)


def test_an_agent_is_a_function_of_a_module_or_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("async def run(problem, base_url):\n    return 1.0\nnothing = 7\n")
    assert load_agent(f"{file}:run").__name__ == "run"  # type: ignore[attr-defined]
    assert load_agent("tests.unit.gateway.test_local:answer") is answer
    for wrong in (f"{file}:walk", f"{file}:nothing", "no.such.module:run", f"{tmp_path / 'missing.py'}:run"):
        with pytest.raises(ConfigError, match="agent"):
            load_agent(wrong)
