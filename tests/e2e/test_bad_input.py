"""What a person gets for a mistake: one clear line and a non-zero exit, from the real command, before anything is half made."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.models import init_model
from penstock.orchestrator.rundir import RunDir
from penstock.orchestrator.state import Phase, read_state

RUN = """
run: {name: tiny, updates: 2, dir: DIR/runs, spare_learner: false}
model: {path: DIR/model}
envs: {sort: {kind: sort}}
batch: {groups_per_update: 2}
eval: {problems: 2, samples: 1}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with a sound config and model, and all that the mistakes need."""
    place = tmp_path_factory.mktemp("place")
    init_model(place / "model", size="nano", template="plain")
    (place / "run.yaml").write_text(RUN.replace("DIR", str(place)))
    (place / "file").write_text("")
    (place / "runs" / "mine").mkdir(parents=True)
    (place / "runs" / "mine" / "thesis.txt").write_text("do not touch")
    running = RunDir(place / "runs" / "running")
    running.make()
    with running.held():
        yield place


@pytest.fixture(scope="module")
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def penstock(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "penstock", *words], cwd=place, capture_output=True, text=True, timeout=180, check=False)


@pytest.mark.parametrize(
    "words, code, sentence",
    [
        ("train run.yaml model.path=absent", 2, "absent is not a model directory (it has no config.json)"),
        ("train run.yaml learner.lrr=1", 2, "learner.lrr: unknown key (value 1); did you mean learner.lr?"),
        ("train run.yaml run.updates=many", 2, "run.updates: must be an integer, got 'many'"),
        ("train run.yaml run.dir=file/runs", 2, "cannot write to the run directory"),
        ("train run.yaml run.name=mine", 2, "runs/mine exists and is not the directory of a run"),
        ("train run.yaml run.name=mine --fresh", 2, "runs/mine is not the directory of a run and is left as it is"),
        ("train run.yaml run.name=running", 1, "run running is running already"),
        ("buffer --dir store --port PORT", 1, "cannot listen on 127.0.0.1:PORT"),
        ("serve --model model --port PORT", 1, "cannot listen on 127.0.0.1:PORT"),
        ("verify runs/running", 1, "is not the directory of a run: it has no buffer/store.sqlite"),
    ],
)
def test_a_mistake_is_one_clear_line_and_a_non_zero_exit(place: Path, taken_port: int, words: str, code: int, sentence: str) -> None:
    done = penstock(place, *words.replace("PORT", str(taken_port)).split())
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert done.stderr.startswith("penstock: ")
    assert done.stderr.count("\n") == 1
    assert sentence.replace("PORT", str(taken_port)) in done.stderr
    assert {path.name for path in (place / "runs").iterdir()} == {"mine", "running"}
    assert (place / "runs" / "mine" / "thesis.txt").read_text() == "do not touch"
    assert not (place / "store").exists()


def test_a_model_that_does_not_load_ends_the_run_at_once_with_the_reason(place: Path) -> None:
    init_model(place / "torn", size="nano", template="plain")
    weights = place / "torn" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    done = penstock(place, "train", "run.yaml", "model.path=torn", f"run.dir={place}", "run.name=torn-run")
    assert done.returncode == 1
    assert "penstock: learner ended with exit 3, which starting again does not mend; the last lines of learner.log:" in done.stderr
    assert f"the model in {place / 'torn'} does not load" in done.stderr
    assert "Traceback" not in done.stderr
    state = read_state(RunDir(place / "torn-run").state)
    assert state is not None
    assert state.phase is Phase.FAILED
    assert all(part.process is None for part in state.parts)
