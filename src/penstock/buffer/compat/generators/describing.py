"""What a generator file defines, found out by running it: for those whose text does not tell."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from penstock.buffer.compat.generators.discovery import DescribeError, Outline
from penstock.buffer.compat.generators.frames import BlockingFrames
from penstock.buffer.compat.generators.processes import CHILD_MODULE, START_SECONDS, ChildSettings


class Described:
    """Files that were run to know them; each once, until it changes."""

    def __init__(self, settings: ChildSettings) -> None:
        self._settings = settings
        self._known: dict[tuple[Path, int, int], Outline | DescribeError] = {}

    def __call__(self, path: Path) -> Outline:
        """What a file defines. Raises `DescribeError`."""
        status = path.stat()
        key = (path, status.st_mtime_ns, status.st_size)
        if key not in self._known:
            try:
                self._known[key] = describe(path, self._settings)
            except DescribeError as error:
                self._known[key] = error
        known = self._known[key]
        if isinstance(known, DescribeError):
            raise known
        return known


def describe(path: Path, settings: ChildSettings, *, seconds: float = START_SECONDS) -> Outline:
    """What a file defines, found out by running it in another process. Raises `DescribeError`."""
    near, far = socket.socketpair()
    with near, far:
        process = subprocess.Popen(
            [sys.executable, "-m", CHILD_MODULE, "describe", str(far.fileno())],
            pass_fds=[far.fileno()],
            env={**os.environ, **settings.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        far.close()
        near.settimeout(seconds)
        frames = BlockingFrames(near)
        try:
            frames.send({"file": str(path), "folders": [str(folder) for folder in settings.folders]})
            told = frames.receive()
        except TimeoutError:
            raise DescribeError(f"it was not done after {seconds:g} s") from None
        except (EOFError, OSError):
            raise DescribeError("its process ended without a word") from None
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if "failed" in told:
        raise DescribeError(told["failed"])
    return Outline(task_type=told["task_type"], names=frozenset(told["names"]))
