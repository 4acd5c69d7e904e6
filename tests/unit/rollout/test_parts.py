"""Actions, the choice of a server, supplies and scores."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest

from penstock.chat import ChatTemplate
from penstock.envs import Delayed
from penstock.errors import ConfigError, InfraError, InvalidError
from penstock.inference.client import Reply
from penstock.problems import Split
from penstock.rollout import Action, EnvConfig, RLRolloutWorker, ScriptedPolicy, Situation, TaskDefinition
from penstock.rollout.dialogue import Dialogue, Prompts
from penstock.rollout.engine_policy import EnginePolicy
from penstock.rollout.scores import ks_of, pass_at_k, scored
from penstock.rollout.supply import Supply
from penstock.trace import samples
from penstock.types import InferenceMetadata, Message, Problem, Rollout, RolloutStatus, Source, VersionRun


def reply(text: str, *, end: int | None = None) -> Reply:
    ids = [*text.encode(), *([] if end is None else [end])]
    versions = (VersionRun(policy="policy", version=0, count=len(ids)),)
    metadata = InferenceMetadata(finish_reason="stop")
    return Reply(ids=np.array(ids, np.int32), logprobs=np.full(len(ids), -0.5, np.float32), versions=versions, text=text, metadata=metadata)


def test_an_action_unpacks_into_four_values() -> None:
    structured, raw, logprobs, value = Action(message=Message(role="assistant", content="hi"), reply=reply("hi"), value_estimate=0.25)
    assert structured == {"type": "text", "content": "hi"}
    assert (raw, value) == ("hi", 0.25)
    assert logprobs == {"token_ids": [104, 105], "logprobs": [-0.5, -0.5]}


def test_a_tool_call_is_structured_by_name_and_arguments() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": {"at": "map"}}}
    action = Action(type="tool_call", message=Message(role="assistant", tool_calls=(call,)))
    assert list(action) == [{"type": "tool_call", "name": "look", "arguments": {"at": "map"}}, "", None, None]


async def test_tool_calls_are_read_only_where_tools_are_offered(template_of: Any) -> None:
    template: ChatTemplate = template_of("chatml")
    text = '<tool_call>{"name": "look", "arguments": {}}</tool_call>'
    ids = np.array([*template.encode_text(text, control_tokens=True).tolist(), template.eos_ids[0]], np.int32)
    versions = (VersionRun(policy="policy", version=0, count=len(ids)),)
    said = Reply(ids=ids, logprobs=np.zeros(len(ids), np.float32), versions=versions, text=text, metadata=InferenceMetadata(finish_reason="stop"))

    class Once:
        async def complete(self, wanted: Any, **options: Any) -> Reply:
            return said

    policy = EnginePolicy(sampler=Once(), template=template)
    situation = Situation(messages=(), ids=np.array([1], np.int32), max_tokens=200, seed=0, deadline_seconds=1.0)
    assert (await policy.get_action(situation)).structured == {"type": "text", "content": text}
    action = await policy.get_action(situation, [{"type": "function", "function": {"name": "look"}}])
    assert action.structured == {"type": "tool_call", "name": "look", "arguments": {}}


async def test_an_engine_that_says_more_than_was_asked_is_not_believed(template_of: Any) -> None:
    class Chatty:
        async def complete(self, wanted: Any, **options: Any) -> Reply:
            return reply("abc")

    situation = Situation(messages=(), ids=np.array([1], np.int32), max_tokens=2, seed=0, deadline_seconds=1.0)
    with pytest.raises(InfraError, match="3 tokens"):
        await EnginePolicy(sampler=Chatty(), template=template_of("plain")).get_action(situation)


def test_words_that_nobody_sampled_are_recorded_and_never_trained_on(template_of: Any) -> None:
    dialogue = Dialogue(Prompts(template_of("plain")))
    dialogue.see([Message(role="user", content="a>")])
    dialogue.say(Action(message=Message(role="assistant", content="b")))
    dialogue.see([Message(role="user", content="c>")])
    trace = dialogue.trace()
    assert [segment.source for segment in trace.segments] == [Source.ENV, Source.INJECTED, Source.ENV]
    rollout = Rollout(run="r", environment="e", problem_id="p", group_id="g/0/0", member=0, retry=0, rollout_uid="u", trace=trace)
    assert samples(rollout) == []


def test_several_messages_and_empty_ones_are_each_marked_once(template_of: Any) -> None:
    dialogue = Dialogue(Prompts(template_of("chatml")))
    shown = [Message(role="system", content="rules"), Message(role="user", content=""), Message(role="user", content="go")]
    dialogue.see(shown)
    assert [mark.message for mark in dialogue.trace().marks] == shown
    spelled = [b"".join(bytes(segment.ids.tolist()) for segment in dialogue.trace().segments[mark.start : mark.stop]) for mark in dialogue.trace().marks]
    assert spelled == [b"rules", b"", b"go"]


def test_a_prompt_that_was_rendered_before_is_not_rendered_again(template_of: Any) -> None:
    prompts = Prompts(template_of("plain"))
    messages = (Message(role="user", content="sort 1>"),)
    assert prompts.open(messages) is prompts.open((Message(role="user", content="sort 1>"),))
    for number in range(2000):
        prompts.open((Message(role="user", content=f"{number}>"),))
    assert len(prompts._opened) <= 1024


def test_a_group_finds_its_problem_again() -> None:
    supply = Supply.of("digits", EnvConfig(kind="sort"))
    problem = supply.problem("digits:train/0/41")
    assert problem.environment == "digits"
    assert problem.id == supply.source(Split.TRAIN).problem(0, 41).id
    assert supply.problem("digits:train/0/41", problem.id) == problem
    with pytest.raises(InvalidError, match="was opened for problem other"):
        supply.problem("digits:train/0/41", "other")
    with pytest.raises(InvalidError, match="does not have"):
        supply.problem("letters:train/0/41")


async def test_an_environment_that_cannot_be_made_fails_when_it_is_opened() -> None:
    class Broken:
        def problems(self, split: Split) -> Any:
            raise AssertionError("nobody asks for its problems")

        def make(self) -> Any:
            raise RuntimeError("no browser")

    for supply in (Supply("broken", Broken()), Supply("broken", Broken(), 0.1)):
        with pytest.raises(RuntimeError, match="no browser"):
            await supply.env().open(Problem(id="p", environment="broken"), 0)
    worker = RLRolloutWorker(TaskDefinition(environment=Broken().make), ScriptedPolicy(["x"]))
    assert (await worker.run_episode())[0] == []
    assert (worker.rollout.status, worker.rollout.failure) == (RolloutStatus.INFRA_ERROR, "env.open raised RuntimeError: no browser")


def test_a_wrong_environment_names_its_key() -> None:
    with pytest.raises(ConfigError, match=r"envs\.digits: .*did you mean max_digits"):
        Supply.of("digits", EnvConfig(kind="sort", params={"max_digitz": 3}))
    assert isinstance(Supply.of("digits", EnvConfig(kind="sort", latency_seconds=0.1)).env(), Delayed)


@pytest.mark.parametrize("num_samples", [1, 2, 5, 6])
def test_pass_at_k_is_the_share_of_all_choices_of_k_that_hold_a_solution(num_samples: int) -> None:
    for num_solved in range(num_samples + 1):
        outcomes = [place < num_solved for place in range(num_samples)]
        for k in range(1, num_samples + 1):
            chosen = [any(choice) for choice in combinations(outcomes, k)]
            assert pass_at_k(num_samples, num_solved, k) == pytest.approx(sum(chosen) / len(chosen), abs=1e-12)


def test_scores_leave_failed_episodes_out_of_every_mean() -> None:
    found = scored([1.0, 0.0, None], [[1.0, 0.0], [0.5, None], [None, None]], solved_reward=1.0)
    assert (found.greedy, found.avg_at_k, found.pass_at) == (0.5, 0.5, {1: 0.5, 2: 1.0})
    nothing = scored([None], [[None, None]], solved_reward=1.0)
    assert (nothing.greedy, nothing.avg_at_k, nothing.pass_at) == (None, None, {})
    assert ks_of(8) == (1, 2, 4, 8)
    assert ks_of(1) == (1,)
