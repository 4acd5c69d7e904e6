"""The examples as users run them: one against an engine that is told what to say, one against a real model in the embedded engine."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.services.gateway_stage import SECONDS, Stage
from tests.services.test_gateway import reply_ids, trained
from tests.unit.gateway.stub_engine import StubEngine

from penstock.testing.inference import random_model, running_server, write_model
from penstock.types import Evidence, RolloutStatus, Source

EXAMPLES = Path(__file__).parents[2] / "examples" / "gateway"
CALL = '<tool_call>{"name": "sort_digits", "arguments": {"digits": "50718"}}</tool_call>'


def tool_user(prompt: str, index: int) -> str:
    """Calls the tool, then says what it said."""
    answers = re.findall(r"tool\n(\d+)", prompt)
    return answers[-1] if answers else CALL


def run_example(name: str, *words: str) -> str:
    done = subprocess.run([sys.executable, str(EXAMPLES / name), *words], capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def tools(tmp_path: Path) -> Iterator[Stage]:
    engine = StubEngine(tool_user)
    made = Stage(tmp_path, engine.url)
    made.start_gateway()
    yield made
    made.close()
    engine.close()


def test_an_agent_with_tools_written_with_nothing_but_openai_fills_a_group(tools: Stage) -> None:
    told = run_example("tool_agent.py", "--gateway", tools.url, "--members", "3")
    assert sorted(told.splitlines()) == [f"tools/0/0:{member}:0: ok, 2 turns, reward 1.0, accepted" for member in range(3)]
    group, _ = tools.asked(lambda client: client.slots_of("tools/0/0"))
    assert (group.state, group.usable) == ("ready", 3)
    for member in range(3):
        rollout = tools.rollout(f"tools/0/0:{member}:0")
        assert trained(rollout) == [reply_ids(CALL), reply_ids("01578")]
        assert [(turn.role, turn.message) for turn in rollout] == [("user", "sort 50718>"), ("assistant", ""), ("tool", "01578"), ("assistant", "01578")]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    directory = tmp_path_factory.mktemp("served")
    write_model(directory / "model", random_model("qwen2", max_positions=4096))
    with running_server(directory, directory / "model") as server:
        yield server.url, directory / "model"


@pytest.fixture
def counting(tmp_path: Path, served: tuple[str, Path]) -> Iterator[Stage]:
    url, model = served
    made = Stage(tmp_path, url, model=model)
    made.start_gateway()
    yield made
    made.close()


def test_an_agent_that_edits_its_history_trains_each_token_of_a_real_model_once(counting: Stage) -> None:
    told = run_example("editing_agent.py", "--gateway", counting.url, "--turns", "5")
    found = re.fullmatch(r"counting/0/0:0:0: (\d+) turns, (\d+) forks, reward ([\d.]+), accepted\n", told)
    assert found is not None, told
    assert int(found[1]) > 5
    assert int(found[2]) >= 1
    rollout = counting.rollout("counting/0/0:0:0")
    assert rollout.status is RolloutStatus.OK
    sampled = [segment for segment in rollout.trace.segments if segment.source is Source.SAMPLED]
    assert sum(len(run) for run in trained(rollout)) == sum(len(segment.ids) for segment in sampled)
    assert Counter(trained(rollout)) == Counter(tuple(segment.ids.tolist()) for segment in sampled)
    assert {run.evidence for segment in sampled for run in segment.versions} == {Evidence.DIGEST}
    assert not [segment for segment in rollout.trace.segments if segment.abandoned]
