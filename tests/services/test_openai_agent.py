"""The policy for OpenAI's API and the example that uses it, against a real inference server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from penstock.chat import ChatTemplate
from penstock.envs import TextWorldEnvironment, Tool
from penstock.problems import Split
from penstock.rollout import ActorConfig, OpenAIAgentPolicy, RLRolloutWorker, TaskDefinition
from penstock.testing.inference import RunningServer, random_model, running_server, write_model
from penstock.trace import samples
from penstock.types import Evidence, Message, Rollout, RolloutStatus

EXAMPLE = Path(__file__).parents[2] / "examples" / "textworld" / "agent.py"
WORLD = TextWorldEnvironment()
TASK = TaskDefinition.of(WORLD, WORLD.problems(Split.TRAIN).problem(0, 0))
LIMITS = ActorConfig(max_tokens=6)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, Path]]:
    directory = tmp_path_factory.mktemp("server")
    model = directory / "model"
    write_model(model, random_model("llama"))
    with running_server(directory, model) as running:
        yield running, model


async def played(running: RunningServer, template: ChatTemplate | None) -> Rollout:
    async with OpenAIAgentPolicy(running.url, "model", template=template) as policy:
        worker = RLRolloutWorker(TASK, policy, 3, template=template, limits=LIMITS)
        await worker.run_episode()
    return worker.rollout


async def test_the_chat_route_and_the_route_by_ids_record_tokens_that_the_server_sampled(server: tuple[RunningServer, Path]) -> None:
    running, model = server
    template = ChatTemplate.load(model)
    for rollout in (await played(running, None), await played(running, template)):
        assert rollout.status in (RolloutStatus.OK, RolloutStatus.TRUNCATED), rollout.failure
        trained = np.concatenate([sample.ids[sample.loss_mask] for sample in samples(rollout)])
        said = [step for step in rollout if step.role == "assistant"]
        assert len(said) == 3
        assert len(trained) == sum(turn.inference_metadata.usage.sampled_tokens for turn in said if turn.inference_metadata is not None)
        assert {run.evidence for segment in rollout.trace.segments for run in segment.versions} == {Evidence.DIGEST}


async def test_without_a_template_the_first_prompt_is_the_servers_own_rendering(server: tuple[RunningServer, Path]) -> None:
    running, model = server
    rollout = await played(running, None)
    opening = ChatTemplate.load(model).open([Message(role="user", content=rollout.turns[0].message)]).ids
    np.testing.assert_array_equal(samples(rollout)[0].ids[: len(opening)], opening)


async def test_tools_are_offered_to_the_server(server: tuple[RunningServer, Path]) -> None:
    running, model = server

    def add(a: int, b: int) -> int:
        """Adds."""
        return a + b

    task = TaskDefinition(initial_messages=(Message(role="user", content="1 + 2?"),), tools=(Tool.of(add),))
    async with OpenAIAgentPolicy(running.url, "model") as policy:
        worker = RLRolloutWorker(task, policy, 1, limits=LIMITS)
        await worker.run_episode()
    opening = ChatTemplate.load(model).open([Message(role="user", content="1 + 2?")], [Tool.of(add).spec]).ids
    np.testing.assert_array_equal(samples(worker.rollout)[0].ids[: len(opening)], opening)


def test_the_example_plays_with_a_served_model(server: tuple[RunningServer, Path]) -> None:
    running, model = server
    told = subprocess.run(
        [sys.executable, EXAMPLE, "--base-url", running.url, "--model", model, "--episodes", "2"], capture_output=True, text=True, check=True, timeout=120
    ).stdout
    assert told.count("ended by env") == 2
    assert "advantage" in told


def test_the_example_plays_by_itself_and_finds_out_what_was_better() -> None:
    told = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, check=True, timeout=120).stdout
    assert told.count("ended by") == 8
    assert "1 after" in told
    advantages = [float(line.split()[-1]) for line in told.splitlines() if " advantage " in line]
    assert min(advantages) < 0 < max(advantages)
