"""Policies for tests and debugging."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from tests.unit.rollout.stub_engine import StubEngine

from penstock.chat import ChatTemplate
from penstock.envs import TextWorldEnvironment
from penstock.inference.client import InferenceClient
from penstock.problems import Split
from penstock.rollout import Action, ReplayingPolicy, RLRolloutWorker, ScriptedPolicy, Situation, TaskDefinition
from penstock.rollout.engine_policy import EnginePolicy
from penstock.trace import samples
from penstock.types import Message, Rollout, RolloutStatus
from penstock.wire import decode_msgpack, encode_msgpack

Templates = Callable[[str], ChatTemplate]
WORLD = TextWorldEnvironment()
TASK = TaskDefinition.of(WORLD, WORLD.problems(Split.TRAIN).problem(0, 0))
OTHER_TASK = TaskDefinition.of(WORLD, WORLD.problems(Split.TRAIN).problem(0, 1))


async def stored(template: ChatTemplate, task: TaskDefinition = TASK, num_steps: int = 4) -> Rollout:
    """A rollout as it comes back from the buffer."""
    engine = StubEngine(lambda prompt: "nesw"[len(prompt) % 4], end_id=template.eos_ids[0])
    async with engine.running(), InferenceClient(engine.url) as client:
        worker = RLRolloutWorker(task, EnginePolicy(sampler=client, template=template), num_steps, template=template)
        await worker.run_episode()
    return decode_msgpack(encode_msgpack(worker.rollout), Rollout)


@pytest.mark.parametrize("name", ["plain", "chatml", "chatml_think"])
async def test_a_stored_rollout_is_played_again_token_by_token(template_of: Templates, name: str) -> None:
    template = template_of(name)
    rollout = await stored(template)
    worker = RLRolloutWorker(TASK, ReplayingPolicy(rollout), 4, template=template)
    await worker.run_episode()
    assert (worker.rollout.reward, worker.rollout.status) == (rollout.reward, rollout.status)
    for again, then in zip(samples(worker.rollout), samples(rollout), strict=True):
        np.testing.assert_array_equal(again.ids, then.ids)
        np.testing.assert_array_equal(again.logprobs, then.logprobs)
        np.testing.assert_array_equal(again.versions, then.versions)
        np.testing.assert_array_equal(again.loss_mask, then.loss_mask)


async def test_an_environment_that_answers_otherwise_is_found_out(template_of: Templates) -> None:
    template = template_of("plain")
    worker = RLRolloutWorker(OTHER_TASK, ReplayingPolicy(await stored(template)), 4, template=template)
    await worker.run_episode()
    assert worker.rollout.status is RolloutStatus.INFRA_ERROR
    assert "before step 0" in (worker.rollout.failure or "")


async def test_an_episode_that_goes_on_after_the_stored_one_is_found_out(template_of: Templates) -> None:
    template = template_of("plain")
    worker = RLRolloutWorker(TASK, ReplayingPolicy(await stored(template, num_steps=2)), 4, template=template)
    steps, _, _ = await worker.run_episode()
    assert len(steps) == 2
    assert "has 2 steps" in (worker.rollout.failure or "")


async def test_a_script_has_texts_actions_and_functions_and_then_terminates() -> None:
    seen = Situation(messages=(Message(role="user", content="?"),), ids=np.empty(0, np.int32), max_tokens=9, seed=0, deadline_seconds=1.0)
    action = Action(type="terminate", message=Message(role="assistant", content="b"))
    policy = ScriptedPolicy(["a", action, lambda situation: str(len(situation.messages))])
    said = []
    for _ in range(4):
        one = await policy.get_action(seen)
        said.append((one.type, one.message.content))
        seen = replace(seen, messages=(*seen.messages, one.message))
    assert said == [("text", "a"), ("terminate", "b"), ("text", "3"), ("terminate", "")]
