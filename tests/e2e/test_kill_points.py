"""One live run is killed with -9 at every named point of every part, and goes on. In the end nothing is lost, repeated or different.

Each life of a part dies at its next point (`PENSTOCK_DIE_PLAN`), all parts at the same time; the orchestrator, whose death takes all others along, is
started again by the test. The tests after the first ask what became of the run.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet
from tests.unit.lab.tampering import Forger

from penstock.cli import main
from penstock.lab.archive import opened
from penstock.lab.verify import verify
from penstock.metrics import read_jsonl
from penstock.models import init_model
from penstock.orchestrator.rundir import RunDir
from penstock.orchestrator.state import Phase, read_state
from penstock.orchestrator.summary import Summary, read_summary
from penstock.process.leash import leashed
from penstock.process.points import POINTS
from penstock.types import GroupState, Purpose

RUN = """
run: {name: walk, updates: 30, dir: DIR, spare_learner: false}
model: {path: DIR/model}
envs: {dense: {kind: "dense_reward:DenseReward", concurrency: 8}}
actor: {group_size: 2, max_tokens: 6, reply_seconds: 20}
batch: {groups_per_update: 2}
freshness: {max_lag: 4}
weights: {checkpoint_every_updates: 3}
eval: {problems: 2, samples: 1}
buffer: {archive: {after_seconds: 0, rollouts_per_file: 6, every_seconds: 0.5}}
"""
# The counts let most lives of the learner get something done before they die (after_fetch is reached in a replay): a part that dies five times
# without progress ends the run.
DEATHS = [
    "orchestrator.after_start",
    "orchestrator.running:16",
    "buffer.before_commit:40",
    "buffer.after_commit:60",
    "buffer.archive_written",
    "buffer.archive_registered",
    "server.before_swap:2",
    "server.mid_reply:20",
    "server.after_swap:2",
    "worker.after_claim:2",
    "worker.mid_episode:3",
    "worker.before_write:3",
    "worker.after_write:3",
    "learner.after_term",
    "learner.after_cut:3",
    "learner.after_fetch:1",
    "learner.after_step:3",
    "learner.after_weights_file:2",
    "learner.after_record:4",
    "learner.after_push:2",
    "learner.after_publish:2",
    "learner.after_checkpoint_dir",
    "learner.after_keep",
]
WALK_SECONDS = 900.0
"""Two minutes on a quiet machine with two cores; a walk that takes so long has got stuck."""
HERE = Path(__file__).parent


class Walk:
    """The run, from its first start to its end."""

    def __init__(self, directory: Path) -> None:
        self.run_dir = RunDir(directory / "walk")
        self._directory = directory
        self._plan = directory / "deaths"
        self._config = directory / "run.yaml"
        self._plan.write_text("\n".join(DEATHS))
        self._config.write_text(RUN.replace("DIR", str(directory)))
        init_model(directory / "model", size="nano", template="plain")

    def start(self) -> tuple[int, str]:
        """One life of the orchestrator; how it ended, and what it said."""
        words = [sys.executable, "-m", "penstock", "train", str(self._config)]
        python_path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
        # On a leash: a test that is ended leaves no run behind.
        environment = {**os.environ, **leashed(), "PYTHONPATH": python_path, "PENSTOCK_DIE_PLAN": str(self._plan)}
        process = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            said, _ = process.communicate(timeout=WALK_SECONDS)
        finally:
            process.kill()
        return process.returncode, said

    def died(self) -> list[str]:
        """Points at which somebody died, in the order of the plan."""
        return [death for number, death in enumerate(DEATHS) if Path(f"{self._plan}.{number}").exists()]

    @property
    def summary(self) -> Summary:
        summary = read_summary(self.run_dir.summary)
        assert summary is not None
        return summary


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Walk:
    """The run after it was killed everywhere and finished. The tests of this file only look at it."""
    walk = Walk(tmp_path_factory.mktemp("walk"))
    for orchestrator_death in [death for death in DEATHS if death.startswith("orchestrator")]:
        code, said = walk.start()
        assert code == -signal.SIGKILL, f"before {orchestrator_death}: {said}"
        leave_litter(walk.run_dir)
    code, said = walk.start()
    assert code == 0, said
    return walk


def leave_litter(run_dir: RunDir) -> None:
    """What a learner leaves that is killed while it writes or removes a file."""
    (run_dir.weights / ".half.safetensors.1.tmp").write_bytes(b"half")
    forgotten = run_dir.path / "checkpoints" / "update_1000"
    forgotten.mkdir(parents=True, exist_ok=True)
    (forgotten / "state.json").write_text("{}")


@pytest.fixture
def copy(walk: Walk, tmp_path: Path) -> Path:
    """The run's directory, to be changed."""
    return Path(shutil.copytree(walk.run_dir.path, tmp_path / "walk"))


def penstock(*words: str) -> tuple[int, str]:
    """Exit code and output of a verb. In this process: what takes long is the imports, and they are done once."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), pytest.raises(SystemExit) as ended:
        main(words)
    return int(ended.value.code or 0), out.getvalue()


def test_every_point_has_killed_its_process_and_the_run_has_finished(walk: Walk) -> None:
    # A gateway is no part of a run; its deaths are tried in tests/services/test_gateway.py.
    assert {death.partition(":")[0] for death in DEATHS} == {point for point in POINTS if not point.startswith("gateway.")}
    assert walk.died() == DEATHS
    state = read_state(walk.run_dir.state)
    assert state is not None
    assert (state.phase, state.updates_done) == (Phase.FINISHED, 30)
    assert walk.summary.updates == 30
    assert walk.summary.ledger_imbalance == 0
    assert walk.summary.eval_before.greedy is not None
    assert walk.summary.eval_after.greedy is not None


def test_every_update_made_other_weights_and_every_token_was_sampled_as_it_was_trained(walk: Walk) -> None:
    with opened(walk.run_dir.path) as archive:
        versions = archive.ledger.versions
        assert [outcome.kind for outcome in archive.ledger.outcomes.values()] == ["applied"] * 30
        assert not any(version.fork for version in versions.values())
    assert len({version.digest for version in versions.values()}) == len(versions) == 31
    assert walk.summary.weights_digest == versions[30].digest
    assert walk.summary.mismatch.tokens > 0
    assert walk.summary.mismatch.max < 1e-4


def test_nothing_is_left_of_the_lives_that_ended_in_the_middle(walk: Walk) -> None:
    with opened(walk.run_dir.path) as archive:
        kept = {f"update_{update}" for update in archive.ledger.checkpoints}
    assert {path.name for path in (walk.run_dir.path / "checkpoints").iterdir() if path.is_dir()} == kept
    assert [path.name for path in walk.run_dir.weights.iterdir() if not path.name.endswith(".safetensors")] == []
    with opened(walk.run_dir.path) as archive:
        files = {Path(file.name).name for file in archive.buffer.store.archive_files("walk")}
    assert len(files) > 2
    assert {path.name for path in walk.run_dir.archive.iterdir()} == files


def test_batches_are_told_and_evaluations_are_stored(walk: Walk) -> None:
    told = {
        line["step"] for line in read_jsonl(walk.run_dir.metrics) if line.get("batches/dense/rollouts_used") == 4 and "replays/dense/frac_on_policy" in line
    }
    assert told <= set(range(30))
    assert len(told) > 25  # a kill between the cut and its line takes the line along
    with opened(walk.run_dir.path) as archive:
        evaluated = {group.id for group in archive.buffer.store.scan_groups("walk") if group.purpose is Purpose.EVAL and group.state is GroupState.READY}
    # Two problems, a greedy group and a sampled one each, before and after.
    assert len(evaluated) == 8


def test_verify_finds_nothing_wrong(walk: Walk) -> None:
    code, said = penstock("verify", str(walk.run_dir.path))
    assert (code, said.splitlines()[-1]) == (0, "everything is accounted for"), said


def test_a_replay_from_the_first_update_gives_the_final_weights(walk: Walk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(HERE)
    code, said = penstock("replay", str(walk.run_dir.path))
    digest = walk.summary.weights_digest
    assert (code, said) == (0, f"30 updates from update_0 replayed; the weights are the run's own, bit for bit: {digest}\n")


def test_one_exchanged_rollout_makes_verify_and_replay_fail(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(HERE)
    with Forger(copy, "walk") as forger:
        rollout = forger.planned(4)[2]
        _, payload = forger.exchanged(rollout)
        forger.put(payload)
    code, said = penstock("verify", str(copy))
    assert code == 1
    assert f"rollout {rollout.uid} was accepted with digest {rollout.digest} and holds other bytes" in said
    code, said = penstock("replay", str(copy))
    assert code == 1
    assert said == f"penstock: {rollout.uid} is not what was stored (digest {rollout.digest})\n"


def test_one_exchanged_rollout_in_an_archive_file_makes_verify_and_replay_fail(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(HERE)
    with Forger(copy, "walk") as forger:
        rollout = forger.planned(0)[2]
        group = forger.store.group("walk", rollout.group_id)
        assert group is not None
        assert group.archive is not None
        path = copy / "buffer" / group.archive
        _, payload = forger.exchanged(rollout)
    rows = parquet.read_table(path).to_pylist()
    exchanged = next(row for row in rows if row["uid"] == rollout.uid)
    exchanged.update(body=payload.body, digest=payload.digest)
    parquet.write_table(pyarrow.Table.from_pylist(rows, schema=parquet.read_schema(path)), path)
    code, said = penstock("verify", str(copy))
    assert code == 1
    assert f"the archive file {group.archive} is not as it was written" in said
    code, said = penstock("replay", str(copy))
    assert code == 1
    assert f"{rollout.uid!r} in row" in said
    assert "is not what was stored" in said


def test_a_rollout_that_was_exchanged_down_to_the_last_digest_gives_other_weights(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(HERE)
    with Forger(copy, "walk") as forger:
        forger.put(*forger.exchanged_throughout(20))
    # Only the writer still knows better. (Of a late update: the lives that ended before they could note an acknowledgement were early ones.)
    assert [finding.promise for finding in verify(copy) if finding.broken] == ["D1"]
    code, said = penstock("replay", str(copy))
    assert code == 3
    assert said.startswith("penstock: update 20 gives weights ")
