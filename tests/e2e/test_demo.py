from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

from penstock.rollout.config import ActorConfig, EnvConfig, EvalConfig
from penstock.rollout.evaluate import EvaluationConfig, evaluate

SHORT = ("run.updates=48", "weights.checkpoint_every_updates=8", "eval.problems=24", "eval.samples=1", "batch.groups_per_update=4")


def penstock(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "penstock", *words], cwd=cwd, capture_output=True, text=True, check=False, timeout=240)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A short demo that has run to its end, and what it said."""
    where = tmp_path_factory.mktemp("demo")
    done = penstock("demo", *SHORT, cwd=where)
    assert done.returncode == 0, done.stdout + done.stderr
    return where, done.stdout


def test_a_demo_kills_its_learner_and_says_that_nothing_changed(demo: tuple[Path, str]) -> None:
    _, said = demo
    assert "killed the learner" in said
    assert "term 2, replayed updates" in said and "digests equal" in said
    assert "the learner is back" in said


def test_a_demo_ends_with_its_numbers_and_with_what_to_ask_next(demo: tuple[Path, str]) -> None:
    where, said = demo
    summary = json.loads((where / "runs" / "demo" / "summary.json").read_text())
    assert (summary["updates"], summary["restarts"], summary["ledger_imbalance"]) == (48, 1, 0)
    assert summary["mismatch"]["tokens"] > 0 and summary["mismatch"]["p999"] <= 1e-5
    for expected in ("held out   greedy", "ledger     balanced", " verify runs/demo", " replay runs/demo", "runs/demo/report.html"):
        assert expected in said, expected
    assert "<svg" in (where / "runs" / "demo" / "report.html").read_text()


def test_the_final_weights_can_be_rebuilt_from_the_archive(demo: tuple[Path, str]) -> None:
    where, _ = demo
    digest = json.loads((where / "runs" / "demo" / "summary.json").read_text())["weights_digest"]
    verified, replayed = penstock("verify", "runs/demo", cwd=where), penstock("replay", "runs/demo", cwd=where)
    assert verified.returncode == 0, verified.stdout
    assert replayed.returncode == 0 and digest in replayed.stdout, replayed.stdout + replayed.stderr


def test_the_model_that_comes_along_has_something_to_learn() -> None:
    config = EvaluationConfig(
        model=Path(str(resources.files("penstock"))) / "models" / "demo" / "model",
        environment="sort",
        env=EnvConfig(kind="sort"),
        actor=ActorConfig(max_tokens=12),
        eval=EvalConfig(problems=512, samples=1),
    )
    found = asyncio.run(evaluate(config))
    assert found.num_problems == 512
    assert found.greedy is not None and 0.40 <= found.greedy <= 0.46
    assert found.avg_at_k is not None and 0.10 <= found.avg_at_k <= 0.20


def test_a_demo_that_is_told_to_stop_stops_its_run(tmp_path: Path) -> None:
    words = [sys.executable, "-u", "-m", "penstock", "demo", *SHORT, "run.updates=1000", "eval.problems=1"]
    process = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if "update" in line and "reward" in line:
            break
    process.send_signal(signal.SIGINT)
    said = process.stdout.read()
    assert process.wait(60) == 128 + signal.SIGINT
    assert "stopped" in said
    state = json.loads((tmp_path / "runs" / "demo" / "state.json").read_text())
    assert state["phase"] == "stopped"
    with pytest.raises(ProcessLookupError):
        os.kill(state["orchestrator"]["pid"], 0)


def test_a_wrong_setting_is_one_line_and_exit_2(tmp_path: Path) -> None:
    refused = penstock("demo", "run.updats=3", cwd=tmp_path)
    assert refused.returncode == 2
    assert len(refused.stderr.splitlines()) == 1 and "updates" in refused.stderr
    assert not (tmp_path / "runs").exists()
