"""Episodes against a real HTTP server that answers, or fails, as it is told."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.unit.rollout.stub_engine import StubEngine, text_of

from penstock.chat import ChatTemplate
from penstock.clock import SystemClock
from penstock.envs import Env, GuessEnvironment, Observation, Reply, Rewards, SortEnvironment
from penstock.errors import EnvError
from penstock.inference.client import InferenceClient
from penstock.problems import Split
from penstock.rollout import ActorConfig, Setting, Ticket, run_episode
from penstock.rollout.dialogue import Prompts
from penstock.rollout.engine_policy import EnginePolicy
from penstock.testing.clock import FakeClock
from penstock.trace import samples, steps
from penstock.types import Message, Problem, Rollout, RolloutStatus, Source
from penstock.wire import decode_msgpack, encode_msgpack

Templates = Callable[[str], ChatTemplate]
TICKET = Ticket(run="run", environment="env", group_id="env:train/0/3", member=2, retry=1, seed=7, env_seed=11)
PROBLEM = Problem(id="sort-312", environment="sort", prompt="sort 312>", ground_truth="123")
GUESS = Problem(id="guess", environment="guess", prompt="1-9>", task={"largest": 9}, ground_truth=6)


def sorting(prompt: str) -> str:
    return "".join(sorted(re.findall(r"sort (\d+)>", prompt)[-1]))


def halving(prompt: str) -> str:
    """Plays the guessing game by bisection, from the hints in the conversation."""
    low, high, guess = 1, 9, 5
    for hint in re.findall(r"(higher|lower)>", prompt):
        low, high = (guess + 1, high) if hint == "higher" else (low, guess - 1)
        guess = (low + high) // 2
    return str(guess)


async def played(engine: StubEngine, template: ChatTemplate, env: Env, problem: Problem = PROBLEM, *, clock: Any = None, **limits: Any) -> Rollout:
    clock = clock or SystemClock()
    async with engine.running(), InferenceClient(engine.url) as client:
        policy = EnginePolicy(sampler=client, template=template, clock=clock)
        setting = Setting(policy=policy, prompts=Prompts(template), limits=ActorConfig(**{"max_tokens": 12, **limits}), clock=clock)
        rollout = await run_episode(TICKET, problem, env, setting)
    # Whatever happened, it can be written down.
    assert decode_msgpack(encode_msgpack(rollout), Rollout).status is rollout.status
    return rollout


def assert_token_truth(rollout: Rollout, engine: StubEngine) -> None:
    """Every sampled id, logprob and version in the rollout is what the server said, in the order in which it said it."""
    sampled = [segment for segment in rollout.trace.segments if segment.source is Source.SAMPLED]
    said_ids = [id for reply in engine.replies for id in reply["token_ids"]]
    said_logprobs = [value for reply in engine.replies for value in reply["logprobs"]["token_logprobs"]]
    said_versions = [run["version"] for reply in engine.replies for run in reply["versions"] for _ in range(run["count"])]
    assert [id for segment in sampled for id in segment.ids.tolist()] == said_ids
    assert [value for segment in sampled if segment.logprobs is not None for value in segment.logprobs.tolist()] == said_logprobs
    assert [run.version for segment in sampled for run in segment.versions for _ in range(run.count)] == said_versions
    trained = [int(id) for sample in samples(rollout) for id in sample.ids[sample.loss_mask]]
    assert sorted(trained) == sorted(said_ids)


async def test_one_turn_records_what_was_shown_said_and_earned(template_of: Templates) -> None:
    engine = StubEngine(sorting, version=4)
    rollout = await played(engine, template_of("plain"), SortEnvironment().make())
    assert (rollout.status, rollout.reward, rollout.rewards) == (RolloutStatus.OK, 1.0, {"exact": 1.0})
    assert (rollout.rollout_uid, rollout.member, rollout.retry) == ("env:train/0/3:2:1", 2, 1)
    assert [(turn.role, turn.message) for turn in rollout] == [("user", "sort 312>"), ("assistant", "123")]
    assert engine.requests[0]["prompt"] == list(b"sort 312>")
    assert [run.version for run in rollout.trace.segments[-1].versions] == [4, 5]
    assert (rollout.metadata["end"], rollout.metadata["steps"]) == ("env", 1)
    assert_token_truth(rollout, engine)


async def test_a_wrong_answer_is_a_reward_of_zero_and_no_failure(template_of: Templates) -> None:
    rollout = await played(StubEngine(lambda _: "321"), template_of("plain"), SortEnvironment().make())
    assert (rollout.status, rollout.reward, rollout.failure) == (RolloutStatus.OK, 0.0, None)


async def test_a_reply_that_was_cut_off_is_truncated_and_scored(template_of: Templates) -> None:
    rollout = await played(StubEngine(sorting), template_of("plain"), SortEnvironment().make(), max_tokens=3)
    assert (rollout.status, rollout.reward) == (RolloutStatus.TRUNCATED, 0.0)


@pytest.mark.parametrize("name", ["plain", "chatml", "chatml_think"])
async def test_each_prompt_of_several_turns_continues_the_one_before_by_ids(template_of: Templates, name: str) -> None:
    template = template_of(name)
    engine = StubEngine(halving, end_id=template.eos_ids[0])
    rollout = await played(engine, template, GuessEnvironment().make(), GUESS)
    assert (rollout.status, rollout.reward) == (RolloutStatus.OK, 1.0)
    assert [turn.message for turn in rollout] == ["1-9>", "5", "higher>", "7", "lower>", "6"]
    for request, reply, following in zip(engine.requests, engine.replies, engine.requests[1:], strict=False):
        known = request["prompt"] + reply["token_ids"]
        assert following["prompt"][: len(known)] == known
    whole = template.open([Message(role=turn.role, content=turn.message) for turn in rollout][:-1])
    assert engine.requests[-1]["prompt"] == whole.ids.tolist()
    assert len(samples(rollout)) == 1
    assert_token_truth(rollout, engine)


async def test_steps_carry_anchor_action_reward_and_end(template_of: Templates) -> None:
    rollout = await played(StubEngine(halving), template_of("plain"), GuessEnvironment().make(), GUESS)
    found = steps(rollout)
    assert [step.observation_data for step in found] == [
        {"low": 1, "high": 9, "left": 6},
        {"low": 6, "high": 9, "left": 5},
        {"low": 6, "high": 6, "left": 4},
    ]
    assert [step.action_taken for step in found] == [{"type": "text", "content": guess} for guess in ("5", "7", "6")]
    assert [(step.base_reward, step.is_done) for step in found] == [(0.0, False), (0.0, False), (1.0, True)]


async def test_stripped_thinking_forks_and_every_sampled_token_is_trained_once(template_of: Templates) -> None:
    template = template_of("chatml_think")
    engine = StubEngine(lambda prompt: f"<think>so</think>{halving(prompt)}", end_id=template.eos_ids[0])

    class Stripping:
        """The game, played by what stands after the thinking."""

        def __init__(self) -> None:
            self.env = GuessEnvironment().make()

        async def open(self, problem: Problem, seed: int) -> Observation:
            return await self.env.open(problem, seed)

        async def step(self, reply: Reply) -> Observation:
            return await self.env.step(Reply(text=reply.text.rpartition("</think>")[2]))

        async def score(self, rollout: Rollout) -> Rewards:
            return await self.env.score(rollout)

    rollout = await played(engine, template, Stripping(), GUESS, max_tokens=30)
    assert rollout.reward == 1.0
    assert len(samples(rollout)) == 3
    assert "<think>" not in text_of(engine.requests[-1]["prompt"])
    assert [turn.role for turn in rollout] == ["user", "assistant"] * 3
    assert len(steps(rollout)) == 3
    assert_token_truth(rollout, engine)


async def test_an_aborted_reply_is_continued_from_its_own_tokens(template_of: Templates) -> None:
    engine = StubEngine(lambda prompt: sorting(prompt)[len(prompt.partition(">")[2]) :])
    engine.faults.extend(["abort", "abort_empty", "abort"])
    rollout = await played(engine, template_of("plain"), SortEnvironment().make())
    assert rollout.reward == 1.0
    assert [text_of(request["prompt"]) for request in engine.requests] == ["sort 312>", "sort 312>1", "sort 312>1", "sort 312>12"]
    assert [request["max_tokens"] for request in engine.requests] == [12, 11, 11, 10]
    assert len({request["seed"] for request in engine.requests}) == 3
    assert_token_truth(rollout, engine)


async def test_a_dropped_connection_and_a_full_server_are_asked_again(template_of: Templates) -> None:
    engine = StubEngine(sorting)
    engine.faults.extend(["die", "429"])
    rollout = await played(engine, template_of("plain"), SortEnvironment().make())
    assert (rollout.status, rollout.reward, len(engine.requests)) == (RolloutStatus.OK, 1.0, 3)
    assert len({request["seed"] for request in engine.requests}) == 1


@pytest.mark.parametrize("fault", ["die", "garbage", "hang", "429", "refuse", "positive", "short", "abort_empty"])
async def test_a_server_that_goes_on_failing_costs_the_episode_and_gives_no_reward(template_of: Templates, fault: str) -> None:
    engine = StubEngine(sorting, always=fault)
    rollout = await played(engine, template_of("plain"), SortEnvironment().make(), reply_seconds=0.3)
    assert (rollout.status, rollout.reward, rollout.rewards) == (RolloutStatus.INFRA_ERROR, None, {})
    assert rollout.metadata["error"] == "server"
    assert rollout.failure


class Misbehaving:
    """A one-turn environment that does `what` at `where`."""

    def __init__(self, where: str, what: Callable[[], Any]) -> None:
        self.where, self.what = where, what

    async def open(self, problem: Problem, seed: int) -> Observation:
        return await self._at("open", Observation(messages=(Message(role="user", content="sort 1>"),)))

    async def step(self, reply: Reply) -> Observation:
        return await self._at("step", Observation(done=True))

    async def score(self, rollout: Rollout) -> Rewards:
        return await self._at("score", {"r": 1.0})

    async def _at(self, where: str, usual: Any) -> Any:
        if where != self.where:
            return usual
        result = self.what()
        return await result if asyncio.iscoroutine(result) else result


def raising(error: BaseException) -> Callable[[], Any]:
    def act() -> Any:
        raise error

    return act


@pytest.mark.parametrize("where", ["open", "step", "score"])
@pytest.mark.parametrize(
    ("what", "status", "kind"),
    [
        (raising(RuntimeError("broken \ud800")), RolloutStatus.INFRA_ERROR, "env_raised"),
        (raising(SystemExit(3)), RolloutStatus.INFRA_ERROR, "env_raised"),
        (raising(TimeoutError("a tool was slow")), RolloutStatus.INFRA_ERROR, "env_raised"),
        (raising(asyncio.CancelledError()), RolloutStatus.INFRA_ERROR, "env_raised"),  # of a task of its own
        (raising(EnvError("no such level")), RolloutStatus.ENV_ERROR, "env_error"),
        (lambda: asyncio.Event().wait(), RolloutStatus.INFRA_ERROR, "env_timeout"),
    ],
    ids=["raises", "exits", "times out", "is cancelled", "says invalid", "hangs"],
)
async def test_an_environment_that_fails_is_a_status(template_of: Templates, where: str, what: Any, status: RolloutStatus, kind: str) -> None:
    rollout = await played(StubEngine(sorting), template_of("plain"), Misbehaving(where, what), step_seconds=0.05)
    assert (rollout.status, rollout.reward, rollout.metadata["error"]) == (status, None, kind)
    assert f"env.{where}" in (rollout.failure or "")


@pytest.mark.parametrize("where", ["open", "step"])
@pytest.mark.parametrize(
    "given",
    [None, {"messages": []}, Observation(messages=("hi",)), Observation(messages=None), Observation(messages=(Message(role="user", content="x"),), info=None)],  # type: ignore[arg-type]
    ids=["nothing", "a dict", "texts", "no messages", "no info"],
)
async def test_what_has_not_the_form_of_an_observation_is_a_status(template_of: Templates, where: str, given: Any) -> None:
    rollout = await played(StubEngine(sorting), template_of("plain"), Misbehaving(where, lambda: given))
    assert (rollout.status, rollout.metadata["error"]) == (RolloutStatus.INFRA_ERROR, "env_raised")
    assert f"env.{where} gave" in (rollout.failure or "")


async def test_what_nobody_thought_of_costs_its_episode_alone(template_of: Templates, caplog: pytest.LogCaptureFixture) -> None:
    class Odd:
        def __iter__(self) -> Any:
            raise ZeroDivisionError("odd")

    env = Misbehaving("open", lambda: Observation(messages=(Message(role="user", content="x"),), tools=Odd()))  # type: ignore[arg-type]
    rollout = await played(StubEngine(sorting), template_of("plain"), env)
    assert (rollout.status, rollout.metadata["error"], rollout.failure) == (RolloutStatus.INFRA_ERROR, "unforeseen", "ZeroDivisionError: odd")
    assert "in __iter__" in caplog.text


async def test_an_environment_that_is_not_even_asynchronous_is_a_status(template_of: Templates) -> None:
    class Blunt:
        def open(self, problem: Problem, seed: int) -> Observation:
            raise ValueError("at once")

        step = score = open

    rollout = await played(StubEngine(sorting), template_of("plain"), Blunt())  # type: ignore[arg-type]
    assert (rollout.status, rollout.metadata["error"]) == (RolloutStatus.INFRA_ERROR, "env_raised")


@pytest.mark.parametrize(
    "rewards",
    [
        None,
        "1",
        1.0,
        {},
        {"r": None},
        {"r": "1"},
        {"r": float("nan")},
        {"r": float("inf")},
        {"r": True},
        {"not a name": 1.0},
        {"r": 10**400},
        {"r": 1e308, "s": 1e308},
    ],
    ids=repr,
)
async def test_a_score_that_is_no_number_is_a_failure_and_never_a_reward(template_of: Templates, rewards: Any) -> None:
    rollout = await played(StubEngine(sorting), template_of("plain"), Misbehaving("score", lambda: rewards))
    assert (rollout.status, rollout.reward, rollout.rewards, rollout.metadata["error"]) == (RolloutStatus.INFRA_ERROR, None, {}, "reward")


async def test_a_step_reward_that_is_no_number_is_a_failure(template_of: Templates) -> None:
    env = Misbehaving("step", lambda: Observation(done=True, reward=float("nan")))
    rollout = await played(StubEngine(sorting), template_of("plain"), env)
    assert (rollout.status, rollout.metadata["error"]) == (RolloutStatus.INFRA_ERROR, "reward")


@pytest.mark.parametrize(
    ("observation", "status"),
    [
        (Observation(), RolloutStatus.INFRA_ERROR),
        (Observation(messages=(Message(role="wizard", content="x"),)), RolloutStatus.INFRA_ERROR),
        (Observation(messages=(Message(role="user", content="\ud800"),)), RolloutStatus.INFRA_ERROR),
        (Observation(messages=(Message(role="user", content="x" * 5000),)), RolloutStatus.ENV_ERROR),
        (Observation(done=True), RolloutStatus.ENV_ERROR),
    ],
    ids=["silent", "unknown role", "no text", "too long", "over at once"],
)
async def test_an_opening_that_cannot_be_played_is_a_status(template_of: Templates, observation: Observation, status: RolloutStatus) -> None:
    rollout = await played(StubEngine(sorting), template_of("plain"), Misbehaving("open", lambda: observation))
    assert (rollout.status, rollout.reward) == (status, None)


async def test_too_many_steps_truncate(template_of: Templates) -> None:
    rollout = await played(StubEngine(lambda _: "0"), template_of("plain"), GuessEnvironment().make(), GUESS, max_episode_steps=2)
    assert (rollout.status, rollout.metadata["end"], len(steps(rollout)), rollout.reward) == (RolloutStatus.TRUNCATED, "max_episode_steps", 2, 0.0)


async def test_too_many_tokens_truncate_and_the_last_reply_gets_only_what_is_left(template_of: Templates) -> None:
    engine = StubEngine(lambda _: "0")
    # 1-9> 0<eos> higher> 0<eos> higher> : 4 + 2 + 7 + 2 + 7 = 22
    rollout = await played(engine, template_of("plain"), GuessEnvironment().make(), GUESS, max_episode_tokens=22)
    assert (rollout.status, rollout.metadata["end"]) == (RolloutStatus.TRUNCATED, "max_episode_tokens")
    assert [request["max_tokens"] for request in engine.requests] == [12, 9]


async def test_too_much_time_truncates_after_the_step_under_way(template_of: Templates) -> None:
    clock = FakeClock()
    env = GuessEnvironment().make()

    class Slow:
        open, score = staticmethod(env.open), staticmethod(env.score)

        async def step(self, reply: Reply) -> Observation:
            await clock.advance(4.0)
            return await env.step(reply)

    rollout = await played(StubEngine(lambda _: "0"), template_of("plain"), Slow(), GUESS, clock=clock, episode_seconds=7.0)
    assert (rollout.status, rollout.metadata["end"], len(steps(rollout))) == (RolloutStatus.TRUNCATED, "episode_seconds", 2)
    assert rollout.metadata["seconds"]["env"] == 8.0


async def test_the_steps_of_a_try_have_seeds_of_their_own_that_follow_from_the_slot(template_of: Templates) -> None:
    first, again = StubEngine(halving), StubEngine(halving)
    await played(first, template_of("plain"), GuessEnvironment().make(), GUESS)
    await played(again, template_of("plain"), GuessEnvironment().make(), GUESS)
    seeds = [request["seed"] for request in first.requests]
    assert len(set(seeds)) == 3
    assert seeds == [request["seed"] for request in again.requests]


async def test_logprobs_are_kept_to_the_bit(template_of: Templates) -> None:
    engine = StubEngine(sorting)
    rollout = await played(engine, template_of("plain"), SortEnvironment().make(), SortEnvironment().problems(Split.TRAIN).problem(0, 0))
    kept = rollout.trace.segments[-1].logprobs
    assert kept is not None
    np.testing.assert_array_equal(kept, np.array(engine.replies[0]["logprobs"]["token_logprobs"], np.float32))


class Holding(Misbehaving):
    """Holds something until it is closed."""

    def __init__(self, where: str = "", what: Callable[[], Any] = lambda: None, *, at_close: Callable[[], Any] = lambda: None) -> None:
        super().__init__(where, what)
        self.at_close, self.num_closed = at_close, 0

    async def close(self) -> None:
        self.num_closed += 1
        result = self.at_close()
        if asyncio.iscoroutine(result):
            await result


@pytest.mark.parametrize("where", ["", "open", "step", "score"])
async def test_an_environment_is_closed_once_however_the_episode_ended(template_of: Templates, where: str) -> None:
    env = Holding(where, raising(RuntimeError("broken")))
    await played(StubEngine(sorting), template_of("plain"), env)
    assert env.num_closed == 1


async def test_an_environment_is_closed_when_its_episode_is_cancelled(template_of: Templates) -> None:
    reached = asyncio.Event()

    async def hang() -> None:
        reached.set()
        await asyncio.Event().wait()

    env = Holding("step", hang)
    playing = asyncio.create_task(played(StubEngine(sorting), template_of("plain"), env))
    await reached.wait()
    playing.cancel()
    await asyncio.gather(playing, return_exceptions=True)
    assert env.num_closed == 1


@pytest.mark.parametrize("at_close", [raising(RuntimeError("stuck")), raising(SystemExit(1)), lambda: asyncio.Event().wait()], ids=["raises", "exits", "hangs"])
async def test_an_environment_that_cannot_be_closed_changes_nothing_about_its_episode(template_of: Templates, at_close: Callable[[], Any]) -> None:
    env = Holding(at_close=at_close)
    rollout = await played(StubEngine(sorting), template_of("plain"), env, step_seconds=0.2)
    assert (rollout.status, rollout.reward) == (RolloutStatus.OK, 1.0)
