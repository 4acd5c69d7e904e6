"""A policy that is any server with OpenAI's API, against a real HTTP server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.unit.rollout.stub_chat import StubChat

from penstock.chat import ChatTemplate
from penstock.envs import TextWorldEnvironment, Tool
from penstock.errors import InfraError, InvalidError
from penstock.problems import Split
from penstock.rollout import ActorConfig, OpenAIAgentPolicy, RLRolloutWorker, Situation, TaskDefinition
from penstock.rollout.openai_shapes import Origin
from penstock.testing.clock import FakeClock
from penstock.trace import samples, steps
from penstock.types import Evidence, Message, RolloutStatus

Templates = Callable[[str], ChatTemplate]
WORLD = TextWorldEnvironment()
TASK = TaskDefinition.of(WORLD, WORLD.problems(Split.TRAIN).problem(0, 0))


def situation(max_tokens: int = 50, deadline_seconds: float = 20.0) -> Situation:
    asked = (Message(role="user", content="hello"),)
    return Situation(messages=asked, ids=np.empty(0, np.int32), max_tokens=max_tokens, seed=1, deadline_seconds=deadline_seconds)


def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


async def test_a_chat_server_that_tells_ids_gives_trainable_tokens_without_a_template_here(template_of: Templates) -> None:
    template = template_of("chatml")
    server = StubChat(template, lambda messages: ["n", "e", "s", "w"][len(messages) % 4])
    async with server.running(), OpenAIAgentPolicy(server.url, "m", origin=Origin(policy="policy", version=7)) as policy:
        worker = RLRolloutWorker(TASK, policy, 4)
        found, messages, _ = await worker.run_episode()
    rollout = worker.rollout
    (sample,) = samples(rollout)
    assert len(found) == 4
    said = [[*template.encode_text(step.action_taken["content"]).tolist(), template.eos_ids[0]] for step in found]
    assert sample.ids[sample.loss_mask].tolist() == [id for ids in said for id in ids]
    assert set(sample.versions[sample.loss_mask].tolist()) == {7}
    assert {run.evidence for segment in rollout.trace.segments for run in segment.versions} == {Evidence.ASSERTED}
    # Each prompt is the one before with what was said: the server's rendering is the trace.
    before = template.open([Message(role=message.role, content=message.content) for message in messages[:7]]).ids.tolist()
    assert sample.ids[: len(before)].tolist() == before


async def test_a_server_that_rewrites_history_makes_the_trace_fork_where_it_did(template_of: Templates) -> None:
    template = template_of("chatml_think")
    server = StubChat(template, lambda _: "<think>so</think>n")
    async with server.running(), OpenAIAgentPolicy(server.url, "m") as policy:
        worker = RLRolloutWorker(TASK, policy, 3)
        found, _, _ = await worker.run_episode()
    trained = [int(id) for sample in samples(worker.rollout) for id in sample.ids[sample.loss_mask]]
    reply = [*template.encode_text("<think>so</think>n", control_tokens=True).tolist(), template.eos_ids[0]]
    assert len(samples(worker.rollout)) == 3
    assert trained == reply * 3
    assert len(found) == 3


async def test_a_server_that_tells_no_ids_gives_words_that_are_never_trained_on(template_of: Templates) -> None:
    server = StubChat(template_of("chatml"), lambda _: "n", tells_ids=False)
    async with server.running(), OpenAIAgentPolicy(server.url, "m", wants_token_ids=False, api_key="sk-1") as policy:
        worker = RLRolloutWorker(TASK, policy, 2)
        await worker.run_episode()
    assert [step.action_taken["content"] for step in steps(worker.rollout)] == ["n", "n"]
    assert samples(worker.rollout) == []
    _, body, headers = server.requests[0]
    assert "return_token_ids" not in body
    assert headers["Authorization"] == "Bearer sk-1"


async def test_with_a_template_the_conversation_goes_out_as_ids(template_of: Templates) -> None:
    template = template_of("chatml")
    server = StubChat(template, lambda _: "", _rest=[ord("n"), template.eos_ids[0]])
    async with server.running(), OpenAIAgentPolicy(f"{server.url}/v1", "m", template=template, temperature=0.5) as policy:
        worker = RLRolloutWorker(TASK, policy, 3, template=template)
        await worker.run_episode()
    assert {path for path, _, _ in server.requests} == {"/v1/completions"}
    assert server.requests[0][1]["temperature"] == 0.5
    assert [step.action_taken["content"] for step in steps(worker.rollout)] == ["n"] * 3
    assert sum(int(sample.loss_mask.sum()) for sample in samples(worker.rollout)) == 6


async def test_tool_calls_of_the_server_are_made(template_of: Templates) -> None:
    calls = ['<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>', "it is 3"]
    server = StubChat(template_of("chatml"), lambda messages: calls[sum(one["role"] == "assistant" for one in messages)])
    task = TaskDefinition(initial_messages=(Message(role="user", content="1 + 2?"),), tools=(Tool.of(add),))
    async with server.running(), OpenAIAgentPolicy(server.url, "m") as policy:
        worker = RLRolloutWorker(task, policy, 4)
        found, messages, _ = await worker.run_episode()
    assert [step.action_taken["type"] for step in found] == ["tool_call", "text"]
    assert [message.content for message in messages if message.role == "tool"] == ["3"]
    second = server.requests[1][1]
    assert second["messages"][1]["tool_calls"][0]["function"]["arguments"] == '{"a": 1, "b": 2}'
    assert second["tools"][0]["function"]["name"] == "add"


async def test_a_call_of_terminate_terminates(template_of: Templates) -> None:
    server = StubChat(template_of("chatml"), lambda _: '<tool_call>{"name": "terminate", "arguments": {}}</tool_call>')
    async with server.running(), OpenAIAgentPolicy(server.url, "m") as policy:
        action = await policy.get_action(situation(200), [Tool.of(add).spec])
    assert action.structured["type"] == "terminate"


@pytest.mark.parametrize("by_ids", [False, True], ids=["chat", "ids"])
async def test_an_aborted_reply_is_continued_by_ids_within_the_budget(template_of: Templates, by_ids: bool) -> None:
    template = template_of("chatml")
    whole = [*template.encode_text("continue").tolist(), template.eos_ids[0]]
    server = StubChat(template, lambda _: "continue", _rest=whole)
    server.faults.extend(["abort", "abort"])
    async with server.running(), OpenAIAgentPolicy(server.url, "m", template=template if by_ids else None) as policy:
        action = await policy.get_action(situation(8 if by_ids else 50))
    assert action.reply is not None
    assert action.reply.ids.tolist() == (whole[:8] if by_ids else whole)
    assert action.message.content == "continue"
    assert action.truncated is by_ids
    assert [path for path, _, _ in server.requests][1:] == ["/v1/completions"] * 2
    assert [body["max_tokens"] for _, body, _ in server.requests] == ([8, 6, 4] if by_ids else [50, 48, 46])
    first = server.requests[1][1]["prompt"]
    assert server.requests[2][1]["prompt"] == [*first, *whole[2:4]]


async def test_an_aborted_reply_without_ids_is_asked_for_again(template_of: Templates) -> None:
    server = StubChat(template_of("chatml"), lambda _: "hello", tells_ids=False)
    server.faults.append("abort")
    async with server.running(), OpenAIAgentPolicy(server.url, "m") as policy:
        action = await policy.get_action(situation())
    assert (action.message.content, len(server.requests)) == ("hello", 2)


@pytest.mark.parametrize("fault", ["die", "500", "garbage", "empty", "strange"])
async def test_trouble_is_asked_again(template_of: Templates, fault: str) -> None:
    server = StubChat(template_of("chatml"), lambda _: "hello")
    server.faults.append(fault)
    async with server.running(), OpenAIAgentPolicy(server.url, "m") as policy:
        assert (await policy.get_action(situation())).message.content == "hello"
    assert len(server.requests) == 2
    assert server.requests[0][1] == server.requests[1][1]


async def test_a_full_server_is_given_the_time_it_asks_for(template_of: Templates) -> None:
    class Noting(FakeClock):
        """Sleeps no longer than it takes to write down how long."""

        def __init__(self) -> None:
            super().__init__()
            self.slept: list[float] = []

        async def sleep(self, seconds: float) -> None:
            self.slept.append(seconds)
            await self.advance(seconds)

    clock = Noting()
    server = StubChat(template_of("chatml"), lambda _: "hello")
    server.faults.extend(["429", "500", "500"])
    async with server.running(), OpenAIAgentPolicy(server.url, "m", clock=clock) as policy:
        assert (await policy.get_action(situation())).message.content == "hello"
    # Three seconds as it asked for, then longer and longer, up to five.
    assert clock.slept == [3.0, 5.0, 5.0]


@pytest.mark.parametrize("fault", ["die", "500", "garbage", "empty", "strange", "429", "hang"])
async def test_a_server_that_goes_on_failing_is_given_up_at_the_deadline(template_of: Templates, fault: str) -> None:
    server = StubChat(template_of("chatml"), lambda _: "hello", always=fault)
    async with server.running(), OpenAIAgentPolicy(server.url, "m") as policy:
        with pytest.raises(InfraError, match="no answer after"):
            await policy.get_action(situation(deadline_seconds=0.3))
        worker = RLRolloutWorker(TASK, policy, 2, limits=ActorConfig(reply_seconds=0.3))
        await worker.run_episode()
    assert (worker.rollout.status, worker.rollout.reward, worker.rollout.metadata["error"]) == (RolloutStatus.INFRA_ERROR, None, "server")


async def test_a_refusal_is_told_at_once(template_of: Templates) -> None:
    server = StubChat(template_of("chatml"), lambda _: "hello", always="refuse")
    async with server.running(), OpenAIAgentPolicy(server.url, "m") as policy:
        with pytest.raises(InvalidError, match="no such model"):
            await policy.get_action(situation())
    assert len(server.requests) == 1


async def test_more_than_was_asked_for_is_not_believed(template_of: Templates) -> None:
    class Chatty(StubChat):
        def _cut(self, ids: list[int], body: dict[str, Any], fault: str) -> tuple[list[int], str]:
            return ids, "stop"

    server = Chatty(template_of("chatml"), lambda _: "hello")
    async with server.running(), OpenAIAgentPolicy(server.url, "m") as policy:
        with pytest.raises(InfraError, match="6 tokens where 3"):
            await policy.get_action(situation(3, deadline_seconds=0.3))


async def test_prompts_that_a_server_renders_otherwise_than_expected_are_recorded_as_it_did(template_of: Templates) -> None:
    """The worker thinks the model reads chatml; the server knows better."""
    server = StubChat(template_of("plain"), lambda _: "n")
    async with server.running(), OpenAIAgentPolicy(server.url, "m") as policy:
        worker = RLRolloutWorker(TASK, policy, 1, template=template_of("chatml"))
        await worker.run_episode()
    (sample,) = samples(worker.rollout)
    plain = template_of("plain").open([Message(role="user", content=worker.rollout.turns[0].message)]).ids.tolist()
    assert sample.ids[: len(plain) + 2].tolist() == [*plain, ord("n"), template_of("plain").eos_ids[0]]
    assert sample.loss_mask.nonzero()[0].tolist() == [len(plain), len(plain) + 1]
