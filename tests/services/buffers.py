"""A real buffer process, and small things to write into it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np

from penstock.buffer import api
from penstock.trace import Recorder
from penstock.types import Message, Rollout, RolloutStatus, Source, VersionRun


class Process:
    """A buffer that can be killed and started again on the same directory and port."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.directory = directory
        self.arguments = arguments
        self.port = 0
        self.start()

    def start(self) -> None:
        port_file = self.directory / "port"
        port_file.unlink(missing_ok=True)
        command = [sys.executable, "-m", "penstock", "buffer", "--dir", str(self.directory), "--port", str(self.port), "--port-file", str(port_file)]
        with (self.directory / "log").open("ab") as log:
            self.child = subprocess.Popen([*command, *self.arguments], stderr=log)
        # One that ends is seen at once. One that is slow may be so because the machine is.
        deadline = time.monotonic() + 120
        while not port_file.exists():
            assert self.child.poll() is None, (self.directory / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        self.port = int(port_file.read_text())

    def kill(self) -> None:
        self.child.kill()
        self.child.wait()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
        """Status and body of one request."""
        request = urllib.request.Request(self.url + path, body, {"Content-Type": "application/json"} | (headers or {}), method=method)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def post(self, path: str, body: bytes, content_type: str = "application/json") -> tuple[int, bytes]:
        return self.ask("POST", path, body, {"Content-Type": content_type})

    def get(self, path: str) -> Any:
        """The JSON at a path, which must be there."""
        status, answer = self.ask("GET", path)
        assert status == 200, answer
        return json.loads(answer)


def rollout(
    group: str,
    member: int,
    *,
    run: str = "run",
    uid: str | None = None,
    retry: int = 0,
    version: int = 0,
    reward: float | None = 1.0,
    status: RolloutStatus = RolloutStatus.OK,
    failure: str | None = None,
) -> Rollout:
    recorder = Recorder()
    recorder.open_message()
    recorder.append(np.array([1, 2, 3], np.int32), Source.ENV)
    recorder.close_message(Message(role="user", content="sort 31>"))
    recorder.open_message()
    runs = (VersionRun(policy="policy", version=version, count=2),)
    recorder.append(np.array([4, 5 + member], np.int32), Source.SAMPLED, logprobs=np.array([-0.5, -0.25], np.float32), versions=runs)
    recorder.close_message(Message(role="assistant", content="13"))
    return Rollout(
        run=run,
        environment="env",
        problem_id="p",
        group_id=group,
        member=member,
        retry=retry,
        rollout_uid=uid or f"{group}:{member}:{retry}",
        trace=recorder.trace(),
        status=status,
        reward=reward,
        failure=failure,
    )


def group(index: int, size: int = 2) -> api.OpenGroup:
    return api.OpenGroup(id=f"s/0/{index}", environment="env", problem_id="p", size=size, first_estimate=10)
