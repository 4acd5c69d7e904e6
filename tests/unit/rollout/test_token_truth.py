"""Whatever the template, the environment and the thinking: every sampled token is trained exactly once, with what the server said about it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.unit.rollout.stub_engine import StubEngine

from penstock.chat import BUILTIN_TEMPLATES, ChatTemplate
from penstock.envs import ENVIRONMENTS, Env, Observation, Reply, Rewards, Tool, ToolEnv, environment
from penstock.inference.client import InferenceClient
from penstock.problems import Split
from penstock.rollout import ActorConfig, Setting, Ticket, run_episode
from penstock.rollout.dialogue import Prompts
from penstock.rollout.engine_policy import EnginePolicy
from penstock.trace import samples, steps
from penstock.types import Problem, Rollout, RolloutStatus

Templates = Callable[[str], ChatTemplate]
Token = tuple[int, float, int]
"""Id, logprob, version."""
TICKET = Ticket(run="run", environment="env", group_id="env:train/0/3", member=0, retry=0, seed=7, env_seed=11)
THINKING = ("", "<think>so</think>", "<think>\nlong\n\nthoughts\n</think>\n\n", "<think>unfinished ")


@dataclass
class Telling(StubEngine):
    """Never says the same number twice: each logprob names one token of the whole episode. Remembers what stood before it."""

    told: int = 0
    contexts: dict[float, list[int]] = field(default_factory=dict)
    """By logprob: all tokens that the server was given, and sampled, before this one."""

    def _answer(self, body: dict[str, Any], fault: str) -> dict[str, Any]:
        answer = super()._answer(body, fault)
        choice = answer["choices"][0]
        self.told += len(choice["token_ids"])
        # Exact in single precision.
        logprobs = choice["logprobs"]["token_logprobs"] = [-(self.told - place) / 1024 for place in range(len(choice["token_ids"]))]
        self.contexts |= {logprob: [*body["prompt"], *choice["token_ids"][:place]] for place, logprob in enumerate(logprobs)}
        return answer


class Stripping:
    """An environment that sees what stands after the thinking."""

    def __init__(self, env: Env) -> None:
        self._env = env

    async def open(self, problem: Problem, seed: int) -> Observation:
        return await self._env.open(problem, seed)

    async def step(self, reply: Reply) -> Observation:
        return await self._env.step(Reply(text=reply.text.rpartition("</think>")[2], tool_calls=reply.tool_calls, truncated=reply.truncated))

    async def score(self, rollout: Rollout) -> Rewards:
        return {"reward": 0.5}


def spoken(engine: Telling) -> list[Token]:
    """What the server said, token by token."""
    return [
        (id, logprob, version)
        for reply in engine.replies
        for id, logprob, version in zip(
            reply["token_ids"],
            reply["logprobs"]["token_logprobs"],
            [run["version"] for run in reply["versions"] for _ in range(run["count"])],
            strict=True,
        )
    ]


def trained(rollout: Rollout) -> list[Token]:
    """What carries loss."""
    return [
        (int(id), float(logprob), int(version))
        for sample in samples(rollout)
        for id, logprob, version in zip(sample.ids[sample.loss_mask], sample.logprobs[sample.loss_mask], sample.versions[sample.loss_mask], strict=True)
    ]


async def played(engine: Telling, template: ChatTemplate, env: Env, problem: Problem, **limits: Any) -> Rollout:
    async with engine.running(), InferenceClient(engine.url) as client:
        policy = EnginePolicy(sampler=client, template=template)
        setting = Setting(policy=policy, prompts=Prompts(template), limits=ActorConfig(**{"max_tokens": 80, "max_episode_steps": 7, **limits}))
        return await run_episode(TICKET, problem, Stripping(env), setting)


def chatty(kind: str, thinking: str) -> Callable[[str], str]:
    """Plays at random, and not only what is allowed."""
    source = random.Random(kind)
    lines = {"sort": ["123", "0"], "guess": ["5", "0", "five", "99"], "textworld": ["n", "e", "s", "w", "take", "drop", "fly"]}
    return lambda _: thinking + source.choice(lines.get(kind, ["yes"]))


def assert_truth(rollout: Rollout, engine: Telling) -> None:
    assert rollout.status in (RolloutStatus.OK, RolloutStatus.TRUNCATED), rollout.failure
    said = spoken(engine)
    assert len(set(said)) == len(said) > 0
    assert sorted(trained(rollout)) == sorted(said)
    for sample in samples(rollout):
        for place in sample.loss_mask.nonzero()[0]:
            assert sample.ids[:place].tolist() == engine.contexts[float(sample.logprobs[place])]
    of_steps = [token for step in steps(rollout) for token in zip(step.policy_logprobs["token_ids"], step.policy_logprobs["logprobs"], strict=True)]
    assert of_steps == [(id, logprob) for id, logprob, _ in said]


@pytest.mark.parametrize("thinking", THINKING, ids=["none", "short", "long", "unfinished"])
@pytest.mark.parametrize("kind", ENVIRONMENTS)
@pytest.mark.parametrize("name", BUILTIN_TEMPLATES)
async def test_every_sampled_token_is_trained_once_with_what_the_server_said(template_of: Templates, name: str, kind: str, thinking: str) -> None:
    template, made = template_of(name), environment(kind)
    for index in range(2):
        engine = Telling(chatty(kind, thinking), end_id=template.eos_ids[0], version=3)
        rollout = await played(engine, template, made.make(), made.problems(Split.TRAIN).problem(0, index))
        assert_truth(rollout, engine)
        # What the server was given last is the conversation as the template shows it.
        last = max(number for number, mark in enumerate(rollout.trace.marks) if mark.message.role == "assistant")
        shown = template.open([mark.message for mark in rollout.trace.marks[:last]])
        assert template.decode(engine.requests[-1]["prompt"]) == template.decode(shown.ids)


@pytest.mark.parametrize("thinking", THINKING[:3], ids=["none", "short", "long"])
@pytest.mark.parametrize("name", BUILTIN_TEMPLATES)
async def test_tool_calls_and_their_results_change_nothing_of_it(template_of: Templates, name: str, thinking: str) -> None:
    template = template_of(name)
    calls = iter(range(4))

    def say(prompt: str) -> str:
        turn = next(calls)
        return f'{thinking}<tool_call>{{"name": "add", "arguments": {{"a": {turn}, "b": 2}}}}</tool_call>' if turn < 3 else f"{thinking}done"

    def add(a: int, b: int) -> int:
        """Adds."""
        return a + b

    engine = Telling(say, end_id=template.eos_ids[0])
    rollout = await played(engine, template, ToolEnv([Tool.of(add)]), Problem(id="p", environment="tools", prompt="what is 2 + 2?"), max_tokens=200)
    assert [turn.message for turn in rollout if turn.role == "tool"] == ["2", "3", "4"]
    assert [step.action_taken["type"] for step in steps(rollout)] == ["tool_call"] * 3 + ["text"]
    assert_truth(rollout, engine)


@pytest.mark.parametrize("name", BUILTIN_TEMPLATES)
async def test_aborted_replies_and_repeated_requests_change_nothing_of_it(template_of: Templates, name: str) -> None:
    template = template_of(name)
    made = environment("textworld")
    engine = Telling(lambda _: "n", end_id=template.eos_ids[0])
    engine.faults.extend(["abort", "die", "", "429", "abort_empty", "abort", "abort"])
    rollout = await played(engine, template, made.make(), made.problems(Split.TRAIN).problem(0, 0))
    assert_truth(rollout, engine)


@pytest.mark.parametrize("max_tokens", [1, 4, 9])
@pytest.mark.parametrize("name", BUILTIN_TEMPLATES)
async def test_replies_that_were_cut_off_change_nothing_of_it(template_of: Templates, name: str, max_tokens: int) -> None:
    template, made = template_of(name), environment("textworld")
    engine = Telling(chatty("textworld", "<think>so</think>"), end_id=template.eos_ids[0])
    rollout = await played(engine, template, made.make(), made.problems(Split.TRAIN).problem(0, 0), max_tokens=max_tokens)
    assert_truth(rollout, engine)


async def test_a_token_that_is_missing_or_doubled_would_be_found(template_of: Templates) -> None:
    """The check itself: a trace from which a reply was taken away does not pass."""
    template, made = template_of("plain"), environment("textworld")
    engine = Telling(chatty("textworld", ""), end_id=template.eos_ids[0])
    rollout = await played(engine, template, made.make(), made.problems(Split.TRAIN).problem(0, 0))
    engine.replies.pop()
    with pytest.raises(AssertionError):
        assert_truth(rollout, engine)
