"""Reward functions in processes of their own: what they may return, and what they cannot do to others."""

from __future__ import annotations

import asyncio
import os
import platform
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.rollout.stub_engine import StubEngine

from penstock.chat import ChatTemplate
from penstock.envs import SortEnvironment
from penstock.errors import ConfigError, InfraError
from penstock.inference.client import InferenceClient
from penstock.problems import Split
from penstock.process.confined import Confinement
from penstock.rollout import Setting, Ticket, run_episode
from penstock.rollout.config import EnvConfig
from penstock.rollout.dialogue import Prompts
from penstock.rollout.engine_policy import EnginePolicy
from penstock.rollout.judging import Judgement, read_judgement
from penstock.rollout.rewards import RewardConfig, RewardPool
from penstock.types import Message, Problem, Rollout, RolloutStatus, Trace

FILE = Path(__file__).with_name("reward_functions.py")
ROLLOUT = Rollout(
    run="r",
    environment="e",
    problem_id="p",
    group_id="g/0/0",
    member=0,
    retry=0,
    rollout_uid="u",
    trace=Trace(segments=()),
    status=RolloutStatus.OK,
    metadata={"steps": 2},
)
PROBLEM = Problem(id="p", environment="e", ground_truth="42")


@asynccontextmanager
async def pool_of(function: str = "by_command", **settings: Any) -> AsyncIterator[RewardPool]:
    async with RewardPool(RewardConfig(function=f"{FILE}:{function}", **{"seconds": 20.0, **settings})) as pool:
        yield pool


async def judged(pool: RewardPool, said: str) -> Judgement:
    return await pool.judge([Message(role="user", content="?"), Message(role="assistant", content=said)], PROBLEM, ROLLOUT)


async def test_a_function_sees_the_messages_and_the_ground_truth() -> None:
    async with pool_of("exact") as pool:
        assert await judged(pool, "42") == Judgement(total=1.0, parts={"reward": 1.0})
        assert (await judged(pool, "43")).total == 0.0


async def test_a_function_is_given_what_it_has_parameters_for() -> None:
    async with pool_of("modest") as pool:
        assert (await judged(pool, "42")).total == 1.0
    async with pool_of("choosy") as pool:
        assert (await judged(pool, "?")).total == 0.5


async def test_a_function_may_be_asynchronous() -> None:
    async with pool_of("asynchronous") as pool:
        assert (await judged(pool, "")).total == 0.5


async def test_total_parts_and_rewards_of_steps_come_through() -> None:
    async with pool_of("detailed") as pool:
        assert await judged(pool, "") == Judgement(total=0.75, parts={"right": 1.0, "long": -0.25}, steps={0: 0.0, 1: 0.1})


async def test_a_module_is_found_where_the_worker_would_find_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_rewards.py").write_text("def zero(messages, ground_truth, **_):\n    return 0\n")
    monkeypatch.chdir(tmp_path)
    async with RewardPool(RewardConfig(function="my_rewards:zero")) as pool:
        assert (await judged(pool, "")).total == 0.0


async def test_a_process_is_warm_and_used_again() -> None:
    async with pool_of() as pool:
        pids = {(await judged(pool, "pid")).total for _ in range(4)}
    assert len(pids) == 1
    assert os.getpid() not in pids


async def test_whatever_is_no_number_is_a_failure_and_the_process_goes_on() -> None:
    async with pool_of(processes=1) as pool:
        pid = await judged(pool, "pid")
        for bad in ("nan", "infinity", "none", "text", "true", "list", "object", "unknown", "raise", "missing"):
            with pytest.raises(InfraError):
                await judged(pool, bad)
        assert await judged(pool, "pid") == pid


async def test_a_process_that_was_broken_is_replaced() -> None:
    async with pool_of(processes=1) as pool:
        for bad in ("exit", "die", "abort", "allocate", "big"):
            with pytest.raises(InfraError):
                await judged(pool, bad)
            assert (await judged(pool, "one")).total == 1.0


@pytest.mark.parametrize("bad", ["hang", "loop", "fork"])
async def test_a_function_that_does_not_return_is_ended_with_all_that_it_started(bad: str) -> None:
    async with pool_of(processes=1, seconds=0.5) as pool:
        with pytest.raises(InfraError, match=r"did not return within 0\.5 s"):
            await judged(pool, bad)
    async with pool_of(processes=1) as pool:
        assert (await judged(pool, "one")).total == 1.0


async def test_what_a_function_prints_or_asks_for_goes_nowhere() -> None:
    async with pool_of() as pool:
        assert (await judged(pool, "flood")).total == 1.0
        assert (await judged(pool, "stdin")).total == 0.0


async def test_a_child_that_was_left_behind_is_ended() -> None:
    async with pool_of() as pool:
        assert (await judged(pool, "one")).total == 1.0
        before = _started()
        assert (await judged(pool, "child")).total > 0
        assert (await judged(pool, "one")).total == 1.0
        # It is ended after its answer and before the next question.
        assert _started() == before


async def test_secrets_of_the_environment_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET_KEY", "sk")
    async with pool_of() as pool:
        assert (await judged(pool, "secret")).total == 0.0
        if pool.confinement.hides_processes:  # else they could be asked for their environment
            assert (await judged(pool, "processes")).total <= 3.0


async def test_there_is_no_network_where_the_system_allows_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        async with pool_of() as pool:
            question = judged(pool, f"connect {server.getsockname()[1]}")
            if pool.confinement is Confinement.NONE:
                assert (await question).total == 1.0
                return
            with pytest.raises(InfraError, match=r"ConnectionRefusedError|Network is unreachable"):
                await question


async def test_nothing_but_temporary_files_can_be_written_where_the_system_allows_it(tmp_path: Path) -> None:
    file = tmp_path / "written"
    async with pool_of() as pool:
        assert [(await judged(pool, command)).total for command in ("lock", "temporary")] == [1.0, 1.0]
        if pool.confinement is Confinement.NONE or tuple(map(int, platform.release().split(".")[:2])) < (5, 12):
            assert (pool.can_write, (await judged(pool, f"write {file}")).total) == (True, 1.0)
            return
        for command in ("write", "remount"):
            with pytest.raises(InfraError, match="Read-only file system"):
                await judged(pool, f"{command} {file}")
        assert not pool.can_write
    file.write_text("the mounts of others are as they were")


async def test_hanging_calls_do_not_hold_up_the_others() -> None:
    async with pool_of(processes=1, seconds=30.0) as pool:
        hanging = [asyncio.create_task(judged(pool, "hang")) for _ in range(3)]
        assert [(await judged(pool, "one")).total for _ in range(3)] == [1.0] * 3
        assert not any(task.done() for task in hanging)
        for task in hanging:
            task.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)


async def test_calls_that_compute_keep_their_place_and_stand_back() -> None:
    async with pool_of(processes=1, seconds=3.0) as pool:
        started = _started()
        spinning = asyncio.create_task(judged(pool, "loop"))
        await asyncio.sleep(0)
        waiting = asyncio.create_task(judged(pool, "one"))
        assert {os.getpriority(os.PRIO_PROCESS, pid) for pid in started} == {8}
        assert {_niceness_of_session(pid) for pid in started} <= {8, None}
        # Nobody else gets the only place before the one that computes is ended.
        done, _ = await asyncio.wait({spinning, waiting}, return_when=asyncio.FIRST_COMPLETED)
        assert done == {spinning}
        waiting.cancel()
        await asyncio.gather(spinning, waiting, return_exceptions=True)


@pytest.mark.parametrize("bad", ["nan", "none", "text", "raise", "exit", "die", "hang"])
async def test_a_bad_reward_function_costs_its_episode_and_gives_no_reward(template_of: Callable[[str], ChatTemplate], bad: str) -> None:
    template = template_of("plain")
    engine = StubEngine(lambda _: bad)
    async with engine.running(), InferenceClient(engine.url) as client, pool_of(seconds=2.0 if bad == "hang" else 20.0) as pool:
        setting = Setting(policy=EnginePolicy(sampler=client, template=template), prompts=Prompts(template), judge=pool)
        ticket = Ticket(run="r", environment="e", group_id="g/0/0", member=0, retry=0, seed=0, env_seed=0)
        problem = SortEnvironment().problems(Split.TRAIN).problem(0, 0)
        rollout = await run_episode(ticket, problem, SortEnvironment().make(), setting)
        engine.say = lambda _: "one"
        after = await run_episode(ticket, problem, SortEnvironment().make(), setting)
    assert (rollout.status, rollout.reward, rollout.rewards, rollout.metadata["error"]) == (RolloutStatus.INFRA_ERROR, None, {}, "reward")
    assert (after.status, after.reward, after.rewards) == (RolloutStatus.OK, 1.0, {"reward": 1.0})
    assert "reward" in after.metadata["seconds"]


async def test_when_it_is_over_nothing_is_left() -> None:
    async with pool_of(processes=2) as pool:
        assert {judgement.total for judgement in await asyncio.gather(*(judged(pool, "one") for _ in range(6)))} == {1.0}
        started = _started()
        assert started
    assert not any(_is_running(pid) for pid in started)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("no_such_module:reward", "ModuleNotFoundError"),
        (f"{FILE}:no_such_function", "AttributeError"),
        (f"{FILE}:COMMANDS", "dict"),
        ("gone.py", "No such file"),
        (f"{FILE}:narrow", r"narrow.*cannot be called with messages, ground_truth and any of environment, .*too many positional arguments"),
        (f"{FILE}:greedy", r"missing a required argument: 'temperature'"),
    ],
)
async def test_a_function_that_cannot_be_loaded_is_told_at_the_start(function: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        async with RewardPool(RewardConfig(function=function)):
            pass


def test_a_name_that_can_be_no_function_is_refused() -> None:
    for name in ("reward", "module:", ":f", "module:not a name"):
        with pytest.raises(ConfigError, match="module:function"):
            EnvConfig(kind="sort", reward=name)


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"total": None},
        {"total": "1"},
        {"parts": {"a b": 1.0}},
        {"parts": [1.0]},
        {"total": 1.0, "step_outputs": {"0": 1.0}},
        {"total": 1.0, "step_outputs": [{"step_index": 0}]},
        {"total": 1.0, "step_outputs": [{"step_index": -1, "base_reward": 1.0}]},
        {"total": 1.0, "step_outputs": [{"step_index": True, "base_reward": 1.0}]},
        {"total": 1.0, "step_outputs": [{"step_index": 0, "base_reward": 1.0}] * 2},
        {"parts": {"a": 1e308, "b": 1e308}},
        10**400,
    ],
    ids=repr,
)
def test_a_judgement_that_does_not_fit_together_is_refused(value: Any) -> None:
    with pytest.raises(InfraError):
        read_judgement(value)


def test_parts_without_a_total_are_added_up() -> None:
    assert read_judgement({"parts": {"a": 1, "b": -0.25}}) == Judgement(total=0.75, parts={"a": 1.0, "b": -0.25})
    assert read_judgement({"total": 0.1, "parts": {"a": 1.0}}).total == 0.1
    assert replace(read_judgement(1), parts={}) == Judgement(total=1.0)


def _started() -> set[int]:
    """All processes that this one has started, and those that they have."""
    found, left = set(), [os.getpid()]
    while left:
        children = [int(pid) for path in Path(f"/proc/{left.pop()}/task").glob("*/children") for pid in path.read_text().split()]
        found.update(children)
        left += children
    return found


def _niceness_of_session(pid: int) -> int | None:
    """None where the kernel knows of no such thing."""
    path = Path(f"/proc/{pid}/autogroup")
    return int(path.read_text().split()[-1]) if path.exists() else None


def _is_running(pid: int) -> bool:
    """Whether there is such a process; one that was killed may take a moment to be gone."""
    deadline = time.monotonic() + 5.0
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        if state == "Z":
            return False
    return True
