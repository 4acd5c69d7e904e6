"""What is under way in workers, by name."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.clock import SystemClock
from penstock.envs import Observation, Reply
from penstock.orchestrator.rundir import RunDir
from penstock.orchestrator.state import Phase, RunState, write_state
from penstock.process.identity import identify, process_table
from penstock.rollout import ScriptedPolicy
from penstock.rollout.episode import Setting, Ticket, run_episode
from penstock.rollout.running import Running, RunningEpisode, SlowReporter, WorkerView, describe_slowest, read_views
from penstock.types import Message, Problem, Rollout


class HandClock(SystemClock):
    """Stands still until it is set."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return 1000.0 + self.seconds

    def monotonic(self) -> float:
        return self.seconds


def test_the_innermost_wait_is_shown_and_the_outermost_is_the_age() -> None:
    running = Running()
    with running.waiting("a", "the worker", now=1.0):
        with running.waiting("b", "the worker", now=2.0), running.waiting("a", "env.step", now=5.0, steps=3):
            assert running.find("a", 9.0) == RunningEpisode(uid="a", steps=3, waits_for="env.step", waited_seconds=4.0, age_seconds=8.0)
            assert [found.uid for found in running.slowest(9.0)] == ["a", "b"]
            assert [found.uid for found in running.slowest(9.0, count=1)] == ["a"]
        assert running.slowest(9.0) == (RunningEpisode(uid="a", steps=0, waits_for="the worker", waited_seconds=8.0, age_seconds=8.0),)
    assert len(running) == 0
    assert running.find("a", 9.0) is None


def test_a_wait_that_fails_is_over() -> None:
    running = Running()
    with pytest.raises(ValueError, match="broken"), running.waiting("a", "env.step", now=0.0):
        raise ValueError("broken")
    assert len(running) == 0


def test_a_slow_episode_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    clock, running = HandClock(), Running()
    slow = SlowReporter(running, "w", None, slow_seconds=10.0, clock=clock)
    caplog.set_level(logging.WARNING)
    with running.waiting("a", "env.step", now=0.0, steps=2), running.waiting("b", "a reply", now=1.0):
        for clock.seconds in (9.0, 12.0, 13.0):
            slow.tell()
    (record,) = caplog.records
    assert record.getMessage() == "2 more episodes are slower than 10 s; the slowest of them is a: 12 s old, 2 steps done, waits for env.step since 12 s"
    with running.waiting("a", "env.step", now=13.0):  # another one of that name is told of anew
        clock.seconds = 30.0
        slow.tell()
    assert len(caplog.records) == 2


def test_the_file_of_a_worker_is_there_while_it_works(tmp_path: Path) -> None:
    clock, running = HandClock(), Running()
    slow = SlowReporter(running, "w", tmp_path / "workers" / "w.json", slow_seconds=10.0, clock=clock)
    with running.waiting("a", "env.step", now=0.0):
        clock.seconds = 3.0
        slow.tell()
    episode = RunningEpisode(uid="a", steps=0, waits_for="env.step", waited_seconds=3.0, age_seconds=3.0)
    (tmp_path / "workers" / "half.json").write_text("{")
    (found,) = read_views(tmp_path / "workers", 1004.0)
    assert (found.worker, found.in_flight, found.slowest, found.written_at) == ("w", 1, (episode,), 1003.0)
    assert read_views(tmp_path / "workers", 1064.0) == []  # of a worker that was killed
    slow.close()
    assert [path.name for path in (tmp_path / "workers").iterdir()] == ["half.json"]


def test_the_file_of_a_worker_that_was_killed_is_known_at_once_to_be_that_of_the_dead(tmp_path: Path) -> None:
    def write(name: str, **facts: Any) -> None:
        found = WorkerView(worker=name, in_flight=0, slowest=(), written_at=1000.0, **facts)
        (tmp_path / f"{name}.json").write_bytes(msgspec.json.encode(found))

    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    write("killed", process=identify(child.pid), process_table=process_table())
    write("elsewhere", process=identify(child.pid), process_table="another machine")
    write("unknown")
    assert [found.worker for found in read_views(tmp_path, 1000.0)] == ["elsewhere", "killed", "unknown"]
    child.kill()
    child.communicate()
    assert [found.worker for found in read_views(tmp_path, 1000.0)] == ["elsewhere", "unknown"]


def view(worker: str, written_at: float, *ages_seconds: float) -> WorkerView:
    slowest = tuple(RunningEpisode(uid=f"{worker}:{age:g}", steps=1, waits_for="a reply", waited_seconds=1.0, age_seconds=age) for age in ages_seconds)
    return WorkerView(worker=worker, in_flight=9, slowest=slowest, written_at=written_at)


def test_the_slowest_of_all_workers_are_shown_and_a_silent_worker_is_called_so() -> None:
    shown = describe_slowest([view("v", 100.0, 50, 40, 30, 1), view("w", 80.0, 25, 5)], 100.0).splitlines()
    assert shown[0] == "18 episodes under way; the slowest:"
    assert [line.split()[0] for line in shown[1:]] == ["v:50:", "w:25:", "v:40:", "v:30:", "w:5:"]
    assert shown[2].endswith("(w, silent for 20 s)")
    assert shown[1].endswith("(v)")
    assert describe_slowest([view("v", 100.0)], 100.0) == ""


def test_status_names_the_slowest_episodes_of_a_run_that_is_under_way(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "r")
    run_dir.make()
    write_state(run_dir.state, RunState(run="r", phase=Phase.RUNNING, orchestrator=identify(os.getpid()), buffer_url="http://b", updates=9))
    running = Running()
    with running.waiting("digits:train/0/7:3:0", "the agent", now=0.0, steps=None):
        SlowReporter(running, "w", run_dir.workers / "w.json", slow_seconds=1e9, clock=SystemClock()).tell()
    words = ["status", "r", "--dir", str(tmp_path)]
    with run_dir.held():
        assert re.search(r"digits:train/0/7:3:0: \d+ s old, waits for the agent since", CliRunner().invoke(app, words).output)
    assert "digits:train" not in CliRunner().invoke(app, words).output


async def test_an_episode_says_what_it_waits_for() -> None:
    seen = []
    setting = Setting(policy=ScriptedPolicy(["x", "y"]), prompts=None)

    class Nosy:
        """Ends at the second step."""

        async def open(self, problem: Problem, seed: int) -> Observation:
            self.left = 2
            return self._looked()

        async def step(self, reply: Reply) -> Observation:
            self.left -= 1
            return self._looked()

        async def score(self, rollout: Rollout) -> dict[str, float]:
            self._looked()
            return {"reward": 1.0}

        def _looked(self) -> Observation:
            found = setting.running.find(ticket.uid, 0.0)
            assert found is not None
            seen.append((found.waits_for, found.steps))
            return Observation(messages=(Message(role="user", content="go on"),), done=self.left == 0)

    ticket = Ticket(run="r", environment="e", group_id="e:train/0/0", member=0, retry=0, seed=0, env_seed=0)
    rollout = await run_episode(ticket, Problem(id="p", environment="e"), Nosy(), setting)
    assert rollout.reward == 1.0
    assert seen == [("env.open", 0), ("env.step", 0), ("env.step", 1), ("env.score", 2)]
    assert len(setting.running) == 0
