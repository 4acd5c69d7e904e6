"""A worker's process that runs the user's agent on the slots it claims, and an evaluation that does."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.services.gateway_stage import SECONDS, Stage
from tests.unit.gateway.stub_engine import StubEngine

from penstock.errors import ConfigError
from penstock.orchestrator.agents import eval_agents
from penstock.rollout.config import EnvConfig, EvalConfig
from penstock.rollout.evaluate import EvaluationConfig, evaluate
from penstock.testing.inference import random_model, write_model
from penstock.trace import samples
from penstock.types import RolloutStatus

torch.set_num_threads(1)
AGENT = """
import openai

async def run(problem, base_url):
    if problem.id.endswith("7"):
        raise RuntimeError("I do not like this one")
    async with openai.AsyncOpenAI(base_url=base_url, api_key="none") as client:
        reply = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": problem.prompt}], temperature=0.2)
    return {"right": float(reply.choices[0].message.content == problem.ground_truth), "polite": 0.5}
"""


def sorting(prompt: str, index: int) -> str:
    """Right for an even number of digits."""
    digits = re.findall(r"sort (\d+)>", prompt)[-1]
    return "".join(sorted(digits)) if len(digits) % 2 == 0 else digits


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    write_model(tmp_path / "model", random_model("llama"))
    (tmp_path / "agent.py").write_text(AGENT)
    config = f"""
run: {{name: run, updates: 1, dir: {tmp_path}}}
model: {{path: {tmp_path / "model"}}}
envs: {{digits: {{kind: sort, concurrency: 8, agent: '{tmp_path / "agent.py"}:run'}}}}
actor: {{group_size: 2, max_tokens: 12, temperature: 1.0, episode_seconds: 30}}
batch: {{groups_per_update: 4}}
"""
    (tmp_path / "config.yaml").write_text(config)
    return tmp_path


@pytest.fixture
def stage(tmp_path: Path, run_dir: Path) -> Iterator[Stage]:
    engine = StubEngine(sorting)
    (tmp_path / "stage").mkdir()
    made = Stage(tmp_path / "stage", engine.url, model=tmp_path / "model")
    made.gateway = made.buffer
    yield made
    made.close()
    engine.close()


def test_a_worker_plays_its_slots_with_the_users_agent(stage: Stage, run_dir: Path) -> None:
    command = [sys.executable, "-m", "penstock", "worker", str(run_dir), "--env", "digits", "--buffer", stage.buffer_url, "--server", stage.engine_url]
    with (run_dir / "worker.log").open("wb") as log:
        worker = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + SECONDS
        while True:
            found = stage.asked(lambda client: client.status()).environments.get("digits")
            if found is not None and found.groups.get("ready", 0) >= 8:
                break
            assert worker.poll() is None, (run_dir / "worker.log").read_text()
            assert time.monotonic() < deadline, (found, (run_dir / "worker.log").read_text())
            time.sleep(0.05)
        worker.terminate()
        worker.wait(20)
    finally:
        worker.kill()
        worker.wait()
    statuses = set()
    for index in range(8):
        for member in range(2):
            try:
                rollout = stage.rollout(f"digits:train/0/{index}:{member}:0")
            except OSError:  # its group is one of those that were not ready yet
                continue
            statuses.add(rollout.status)
            if rollout.status is not RolloutStatus.OK:
                assert rollout.metadata["error"] == "agent_raised"
                continue
            (sample,) = samples(rollout)
            said = bytes(id for id in sample.ids[sample.loss_mask].tolist() if id < 256).decode()
            assert rollout.rewards == {"right": float(said == "".join(sorted(said)) and len(said) % 2 == 0), "polite": 0.5}
            assert sample.versions[sample.loss_mask].tolist() == [0] * len([*said, "end"])
    assert RolloutStatus.OK in statuses


async def test_an_evaluation_plays_the_agent_too(run_dir: Path) -> None:
    env = EnvConfig(kind="sort", agent=f"{run_dir / 'agent.py'}:run")
    config = EvaluationConfig(model=run_dir / "model", environment="digits", env=env, eval=EvalConfig(problems=3, samples=2, concurrency=4, max_retries=0))
    with pytest.raises(ConfigError, match="agent"):
        await evaluate(config)
    result = await evaluate(config, agents=eval_agents)
    failed = sum(result.errors.values())
    assert failed in (0, 3, 6, 9)
    assert result.errors.keys() <= {"agent_raised"}
    # A random model sorts nothing, but it is polite.
    assert result.greedy == 0.5
    assert result.tokens_sampled > 0
