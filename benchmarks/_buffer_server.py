"""Servers under measurement: a buffer or its peer in a process of its own, with the CPU time and memory that the system counts for it."""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from _report import process_cpu_seconds

_PEER = Path(__file__).parent / "_buffer_peer.py"
_SETTINGS = {"group-size": 8, "group-timeout-seconds": 1e8, "archive-after-seconds": 1e8}
"""Nothing but what is measured happens: no group times out, none is moved meanwhile."""


class Server:
    """A running server; ends with its context."""

    def __init__(self, directory: Path, command: list[str], port_file: Path) -> None:
        with (directory / "log").open("wb") as log:
            self._child = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + 60
        while not (port_file.exists() and port_file.read_text()):
            if self._child.poll() is not None or time.monotonic() > deadline:
                self._child.kill()
                raise SystemExit(f"{' '.join(command)} did not start:\n{(directory / 'log').read_text()}")
            time.sleep(0.02)
        self.port = int(port_file.read_text())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._child.kill()
        self._child.wait()

    @property
    def cpu_seconds(self) -> float:
        """CPU time of all its threads so far."""
        return process_cpu_seconds(self._child.pid)

    @property
    def resident_bytes(self) -> int:
        """Memory that it occupies now."""
        return int(Path(f"/proc/{self._child.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def ask(self, path: str, body: bytes, content_type: str = "application/json") -> bytes:
        """One request over a connection of its own; its answer, which must be a good one."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        try:
            connection.request("POST", path, body, {"Content-Type": content_type})
            answer = connection.getresponse()
            found = answer.read()
        finally:
            connection.close()
        if answer.status != 200:
            raise SystemExit(f"{path} was answered with {answer.status}: {found[:500]!r}")
        return found


def our_server(directory: Path) -> Server:
    """`penstock buffer` with its defaults but for clocks that would interfere."""
    directory.mkdir()
    port_file = directory / "port"
    words = [word for name, value in _SETTINGS.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "penstock", "buffer", "--dir", str(directory), "--port", "0", "--port-file", str(port_file), *words]
    return Server(directory, command, port_file)


def peer_server(directory: Path) -> Server:
    """The peer."""
    directory.mkdir()
    port_file = directory / "port"
    return Server(directory, [sys.executable, str(_PEER), str(port_file), str(_SETTINGS["group-size"])], port_file)
