"""A run of real processes: its parts and the orchestrator itself are killed with -9, and in the end everything is accounted for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.lab.verify import verify
from penstock.models import init_model
from penstock.orchestrator.rundir import RunDir
from penstock.orchestrator.state import Phase, RunState, read_state
from penstock.orchestrator.summary import read_summary, store_facts
from penstock.process.identity import ProcessId
from penstock.process.supervisor import PartState, PartStatus

RUN = """
run: {name: tiny, updates: 100000, dir: DIR, spare_learner: false}
model: {path: DIR/model}
envs: {sort: {kind: sort, concurrency: 16}}
actor: {group_size: 2, max_tokens: 6, reply_seconds: 20}
batch: {groups_per_update: 2}
freshness: {max_lag: 4}
weights: {checkpoint_every_updates: 7}
eval: {problems: 4, samples: 1}
"""
WAIT_SECONDS = 90.0
"""Nothing here takes so long; a test that waits in vain has failed."""


class Orchestrator:
    """`penstock train` as a process, and what its run directory says."""

    def __init__(self, directory: Path) -> None:
        self.config = directory / "run.yaml"
        self.run_dir = RunDir(directory / "tiny")
        self.config.write_text(RUN.replace("DIR", str(directory)))
        self.process: subprocess.Popen[str] | None = None

    def start(self, *overrides: str) -> None:
        words = [sys.executable, "-m", "penstock", "train", str(self.config), *overrides]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def end(self) -> tuple[int, str]:
        """Wait for its exit; what it printed."""
        assert self.process is not None
        out, _ = self.process.communicate(timeout=WAIT_SECONDS)
        return self.process.returncode, out

    def state(self) -> RunState:
        state = read_state(self.run_dir.state)
        assert state is not None
        return state

    def part(self, name: str) -> PartStatus:
        return next(part for part in self.state().parts if part.name == name)

    def until(self, holds: Callable[[RunState], bool]) -> RunState:
        """Wait for a state; a run that has ended before is a failure that shows what it said."""
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            state = read_state(self.run_dir.state)
            if state is not None and self.process is not None and state.orchestrator.pid == self.process.pid and holds(state):
                return state
            if self.process is None or self.process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"the run did not get there: {state}\n{self.end()[1] if self.process and self.process.poll() is not None else ''}")
            time.sleep(0.05)

    def until_progress(self) -> RunState:
        """Wait for more updates than could be made from groups that are ready now: every part must have done its share."""
        before = self.state().updates_done
        return self.until(lambda state: state.updates_done >= before + 10)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("runs")
    init_model(directory / "model", size="nano", template="plain")
    return directory


@pytest.fixture(scope="module")
def run(directory: Path) -> Iterator[Orchestrator]:
    """One run for all tests of this file, which are the chapters of its story."""
    run = Orchestrator(directory)
    run.start("run.spare_learner=true")
    yield run
    if run.process is not None and run.process.poll() is None:
        run.process.kill()
        run.process.communicate()


def test_a_second_orchestrator_is_refused_while_the_first_lives(run: Orchestrator) -> None:
    run.until(lambda state: state.updates_done >= 1)
    second = subprocess.run([sys.executable, "-m", "penstock", "train", str(run.config)], capture_output=True, text=True)
    assert second.returncode == 1
    assert second.stderr == f"penstock: run tiny is running already; `penstock status {run.run_dir.path}` shows it\n"


def test_workers_are_added_and_removed_by_hand_and_the_run_goes_on(run: Orchestrator) -> None:
    words = [sys.executable, "-m", "penstock", "worker", str(run.run_dir.path), "--env", "sort", "--name"]
    added = {name: subprocess.Popen([*words, name], stderr=subprocess.DEVNULL) for name in ("killed", "stopped")}
    acks = {name: run.run_dir.acks / f"{name}.log" for name in added}
    run.until(lambda state: all(path.exists() and path.stat().st_size > 0 for path in acks.values()))
    added["killed"].kill()
    added["stopped"].send_signal(signal.SIGTERM)
    assert added["stopped"].wait(WAIT_SECONDS) == 0
    added["killed"].wait()
    # Its slots are given to others once its session is over; what it was told is stored is there (checked when the run has ended).
    run.until_progress()


@pytest.mark.parametrize("name", ["worker-sort-0", "server-0", "learner", "buffer"])
def test_a_killed_part_comes_back_and_the_run_goes_on(run: Orchestrator, name: str) -> None:
    killed = run.part(name).process
    assert killed is not None
    os.kill(killed.pid, signal.SIGKILL)
    run.until(lambda state: any(part.name == name and part.restarts == 1 and part.state is PartState.READY for part in state.parts))
    run.until_progress()
    assert run.part(name).last_exit == "SIGKILL"


def test_children_die_with_a_killed_orchestrator_and_the_next_one_goes_on(run: Orchestrator) -> None:
    state = run.state()
    children = [part.process for part in state.parts if part.process is not None]
    assert len(children) == 4
    assert run.process is not None
    run.process.kill()
    run.process.communicate()
    wait_until_gone(children)
    assert not run.run_dir.is_held()
    run.start()
    resumed = run.until_progress()
    assert resumed.restarts == 4
    assert resumed.wall_seconds > state.wall_seconds


def wait_until_gone(processes: list[ProcessId]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while any(process.is_alive for process in processes):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_run_that_is_told_to_stop_drains_and_says_that_it_can_be_resumed(run: Orchestrator) -> None:
    children = [part.process for part in run.state().parts if part.process is not None]
    stop = subprocess.run([sys.executable, "-m", "penstock", "stop", str(run.run_dir.path)], capture_output=True, text=True)
    assert (stop.returncode, stop.stdout) == (0, "run tiny has stopped\n")
    code, out = run.end()
    assert code == 128 + signal.SIGTERM
    assert "starting it again goes on from here" in out
    assert run.state().phase is Phase.STOPPED
    assert not any(process.is_alive for process in children)


def test_another_run_under_the_same_name_is_refused_with_the_key(run: Orchestrator) -> None:
    run.start("learner.lr=0.5")
    code, out = run.end()
    assert code == 2
    assert out.startswith("penstock: learner.lr: run tiny was started with 0.0003, 0.5 would make another run of it")


def test_the_resumed_run_finishes_with_everything_accounted_for(run: Orchestrator) -> None:
    # Asked of the store: the state's own figure is as old as the last look at a learner that went on until it was told to stop.
    updates = store_facts(run.run_dir, "tiny").updates + 3
    run.start(f"run.updates={updates}")
    code, out = run.end()
    assert code == 0, out
    summary = read_summary(run.run_dir.summary)
    assert summary is not None
    assert summary.updates == updates
    assert summary.ledger_imbalance == 0
    assert summary.restarts == 4
    assert summary.tokens_sampled > summary.tokens_trained > 0
    assert summary.mismatch.tokens > 0
    assert summary.mismatch.max < 1e-4
    assert summary.eval_before.greedy is not None
    assert summary.eval_after.sampled is not None
    assert summary.cpu_seconds > 0
    assert f"{updates} updates" in out
    assert [sentence for finding in verify(run.run_dir.path) for sentence in finding.broken] == []


def test_a_finished_run_prints_its_summary_again(run: Orchestrator) -> None:
    run.start(f"run.updates={run.state().updates}")
    code, out = run.end()
    assert code == 0
    assert "is finished" in out
    assert f"{run.state().updates} updates" in out


def test_a_part_that_keeps_dying_stops_the_run_with_its_last_words(run: Orchestrator, directory: Path) -> None:
    store = RunDir(directory / "dying")
    store.make()
    (store.buffer / "store.sqlite").write_bytes(b"this is not a store " * 1000)
    words = [sys.executable, "-m", "penstock", "train", str(run.config), "run.name=dying"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=WAIT_SECONDS)
    assert done.returncode == 1
    assert "penstock: buffer died 5 times within 300 s without progress, the last time with exit 1; the last lines of buffer.log:" in done.stderr
    assert "store.sqlite" in done.stderr.splitlines()[-1]
    state = read_state(store.state)
    assert state is not None
    assert state.phase is Phase.FAILED
    assert state.reason is not None
    assert state.reason.startswith("buffer died 5 times")
