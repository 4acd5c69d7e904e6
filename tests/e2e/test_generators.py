"""The commands as a person starts them: a buffer, a server of a tiny random model, and generators that the buffer is asked to run."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from penstock.models import init_model
from penstock.process.ports import free_ports
from penstock.testing.inference import running_server

T = TypeVar("T")
FILES = Path(__file__).parent.parent / "data" / "generators"
PAGE = Path(__file__).parents[2] / "docs" / "generators.md"
NUM_TOKENS = 100
ENOUGH_ABORTED = 12


def asked(url: str, value: Any = None) -> tuple[int, Any]:
    """Status and body of a request; a POST if there is a value."""
    data = None if value is None else json.dumps(value).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, {"Content-Type": "application/json"}), timeout=90) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def eventually(look: Callable[[], T | None], seconds: float = 120.0) -> T:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"nothing after {seconds} s")


@dataclass
class Place:
    """A working directory with problems, generators and the URL of an engine."""

    folder: Path
    engine: str

    def payload(self, **changes: Any) -> dict[str, Any]:
        return {
            "task_type": "letters",
            "remote_engine_url": self.engine,
            "input_file": "problems.jsonl",
            "num_repeat_per_sample": "4",
            "num_epoch": "2",
            "num_process": "4",
            "sampling_params": {"max_tokens": NUM_TOKENS, "temperature": 1.0},
            **changes,
        }

    @contextlib.contextmanager
    def buffer(self, name: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
        """A running `penstock buffer`, and its URL."""
        port_file = self.folder / f"{name}.port"
        words = ["--dir", name, "--port", "0", "--port-file", str(port_file), "--generators", "files"]
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen([sys.executable, "-m", "penstock", "buffer", *words], cwd=self.folder, stdout=log, stderr=log)
        try:
            eventually(lambda: port_file.exists() or process.poll() is not None)
            url = f"http://127.0.0.1:{port_file.read_text()}"
            asked(f"{url}/livez")
            yield url, process
        finally:
            process.terminate()
            process.wait(timeout=30)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("place")
    init_model(folder / "model", size="nano", template="chatml")
    shutil.copytree(FILES, folder / "files")
    problems = [{"instance_id": f"p{number}", "prompt": [{"role": "user", "content": f"say {number}"}], "label": "0"} for number in range(3)]
    (folder / "problems.jsonl").write_text("".join(json.dumps(problem) + "\n" for problem in problems))
    with running_server(folder, folder / "model") as server:
        yield Place(folder, server.url)


def members(group: int) -> list[int]:
    """Living processes of a process group."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, of_group, *_ = stat.read_text().rpartition(")")[2].split()
            if int(of_group) == group and state != "Z":
                found.append(int(stat.parent.name))
    return found


def state_of(url: str, task_type: str) -> dict[str, Any]:
    told = asked(f"{url}/generators")[1]["generators"]
    return next(state for state in told if state["task_type"] == task_type)


def until_over(url: str, task_type: str) -> dict[str, Any]:
    def over() -> dict[str, Any] | None:
        state = state_of(url, task_type)
        return state if state["state"] in ("finished", "failed", "stopped") else None

    return eventually(over)


def read_until(url: str, num_items: int) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []

    def enough() -> bool:
        told = asked(f"{url}/get_rollout_data", {})[1]
        items.extend(told["data"]["data"])
        return len(items) >= num_items

    eventually(enough)
    return items


def test_a_generator_of_the_original_fills_the_buffer_while_its_replies_are_aborted(place: Place) -> None:
    with place.buffer("first") as (url, _):
        assert asked(f"{url}/start_rollout", place.payload(remote_buffer_url=url)) == (200, {"message": "Rollout started"})
        num_aborted = 0

        def over() -> bool:
            nonlocal num_aborted
            if num_aborted < ENOUGH_ABORTED:
                num_aborted += asked(f"{place.engine}/abort", {})[1]["aborted"]
            return state_of(url, "letters")["ended_at"] is not None

        eventually(over)
        assert state_of(url, "letters")["state"] == "finished", asked(f"{url}/generators/letters/log")
        assert num_aborted > 0
        items = read_until(url, 24)
        # Two passes over three problems, four times each; no reply is longer or shorter for having been aborted.
        assert Counter(item["instance_id"] for item in items) == {"p0": 8, "p1": 8, "p2": 8}
        assert len({item["uid"] for item in items}) == 24
        assert all(item["messages"][0]["used"] <= NUM_TOKENS for item in items)
        assert max(item["messages"][0]["parts"] for item in items) > 1
        for instance in ("p0", "p1", "p2"):
            assert abs(sum(item["reward"] for item in items if item["instance_id"] == instance)) < 1e-6
        assert asked(f"{url}/get_rollout_data", {})[1]["message"] == "No data available to read"
        assert any("24/24" in line or "12/12" in line for line in asked(f"{url}/generators/letters/log?lines=50")[1]["lines"])


def test_a_killed_generator_has_failed_and_the_buffer_lives(place: Place) -> None:
    with place.buffer("second") as (url, buffer):
        assert asked(f"{url}/start_rollout", place.payload(num_epoch=1000, sampling_params={"max_tokens": 8}))[0] == 200
        read_until(url, 12)
        running = state_of(url, "letters")
        assert running["state"] == "running"
        assert asked(f"{url}/start_rollout", place.payload(num_epoch=7))[0] == 409
        os.kill(running["pid"], signal.SIGKILL)
        failed = until_over(url, "letters")
        assert (failed["state"], failed["reason"]) == ("failed", "the process ended with SIGKILL")
        item = {"uid": "mine", "instance_id": "x", "messages": [], "reward": 1.0}
        assert asked(f"{url}/buffer/write", item)[0] == 200
        # What it had finished is skipped in its next life, which ends when it is told to.
        assert asked(f"{url}/start_rollout", place.payload(num_epoch=1000, sampling_params={"max_tokens": 8}))[0] == 200
        again = state_of(url, "letters")
        assert again["num_skipped"] >= 3 and again["pid"] != running["pid"]
        assert asked(f"{url}/generators/letters/stop", {})[1]["state"] == "stopped"
        assert asked(f"{url}/start_rollout", place.payload(num_epoch=1000, sampling_params={"max_tokens": 8}))[0] == 200
        last = eventually(lambda: state_of(url, "letters")["pid"])
        eventually(lambda: len(members(last)) > 4)
        # Its processes, with all that it has started, do not outlive a buffer that was killed.
        buffer.kill()
        eventually(lambda: not members(last))


@pytest.mark.parametrize(
    "changes, status, words",
    [
        ({"task_type": "absent"}, 404, "no generator has TASK_TYPE 'absent'"),
        ({"task_type": "files/letters_generator.py"}, 404, "no generator has TASK_TYPE"),
        ({"input_file": "/etc/passwd"}, 422, "data root"),
        ({"num_epoch": "some"}, 422, "num_epoch"),
        ({"remote_engine_url": "file:///etc/passwd"}, 422, "remote_engine_url"),
    ],
)
def test_a_start_that_cannot_be_is_refused_by_name(shared_buffer: str, place: Place, changes: dict[str, Any], status: int, words: str) -> None:
    told = asked(f"{shared_buffer}/start_rollout", place.payload(**changes))
    assert told[0] == status
    assert words in told[1]["message"]


@pytest.fixture(scope="module")
def shared_buffer(place: Place) -> Iterator[str]:
    with place.buffer("third") as (url, _):
        yield url


def test_a_generator_is_made_once_and_under_a_name_that_can_be_one(place: Place) -> None:
    def penstock(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", "penstock", *words], cwd=place.folder, capture_output=True, text=True, timeout=120, check=False)

    made = penstock("init", "generator", "sums")
    assert (made.returncode, "generator/sums_generator.py" in made.stdout) == (0, True), made.stderr
    for name, sentence in (("sums", "exists already"), ("../Sums", "lower-case"), ("base", "take another name")):
        refused = penstock("init", "generator", name)
        assert (refused.returncode, sentence in refused.stderr) == (2, True), refused.stderr
    assert not (place.folder / "generator" / "base_generator.py").exists()


def test_the_commands_of_the_page_make_a_generator_run_it_and_read_what_it_has_made(place: Place, tmp_path: Path) -> None:
    (commands,) = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    port = str(free_ports(1)[0])
    # The engine is there already, and the usual port may be taken.
    typed = re.sub(r"(127\.0\.0\.1|localhost):8000", place.engine.removeprefix("http://"), re.sub(r"penstock serve.*\n", "", commands))
    typed = typed.replace("penstock buffer", f"penstock buffer --port {port}").replace("8889", port).replace("penstock ", f"{sys.executable} -m penstock ")
    done = subprocess.run(["bash", "-c", f"set -e\ntrap 'kill %1; wait' EXIT\n{typed}"], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert '{"message":"Rollout started"}' in done.stdout
    assert '"task_type":"sums","file":"sums_generator.py","functions":[],"state":"finished"' in done.stdout
    assert '"total_samples":32,"num_groups":8' in done.stdout


MOODY = """
import os, time

TASK_TYPE = "moody"

def run_rollout(data):
    pass

def normalize_group_data(group):
    if group[0] == "raises":
        raise KeyError("score")
    if group[0] == "dies":
        os._exit(3)
    for item in group[1]:
        item["raw_reward"], item["reward"] = item["reward"], 10 * item["reward"]
    return group
"""


def test_a_function_of_a_generator_that_fails_costs_its_own_group(shared_buffer: str, place: Place) -> None:
    (place.folder / "files" / "moody_generator.py").write_text(MOODY)
    assert asked(f"{shared_buffer}/start_rollout", place.payload(task_type="moody", num_repeat_per_sample=2))[0] == 200
    assert until_over(shared_buffer, "moody")["functions"] == ["normalize_group_data"]
    for name in ("good", "raises", "dies", "fine"):
        for reward in (0.0, 1.0):
            item = {"uid": f"{name}{reward}", "instance_id": name, "messages": [{"role": "user", "content": "x"}], "reward": reward}
            assert asked(f"{shared_buffer}/buffer/write", item)[0] == 200
    told = asked(f"{shared_buffer}/get_rollout_data", {})[1]
    assert [(item["instance_id"], item["reward"], item["raw_reward"]) for item in told["data"]["data"]] == [
        ("good", 0.0, 0.0),
        ("good", 10.0, 1.0),
        ("fine", 0.0, 0.0),
        ("fine", 10.0, 1.0),
    ]
    assert told["data"]["meta_info"]["dropped"]["hook_error:normalize_group_data"] == 2
    assert asked(f"{shared_buffer}/get_rollout_data", {})[1]["success"] is False
