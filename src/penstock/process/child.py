"""One started process: in a session of its own, on a leash, with its words in a log file."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from penstock.process.identity import ProcessId, identify
from penstock.process.leash import leashed
from penstock.process.restarts import RestartPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSpec:
    """A part that is to be kept running."""

    name: str
    program: tuple[str, ...]
    """First words of the command."""
    arguments: Callable[[int], Awaitable[Sequence[str]]]
    """The rest of it, for the n-th start, from 0: a later life may have to be told about the one before."""
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to this process's own."""
    url: str | None = None
    """Where it serves. If given, it is ready once `/readyz` answers 200, and is killed when `/livez` stops answering. If not, it is ready at once."""
    ready_seconds: float = 60.0
    """It has so long to become ready."""
    ends: bool = False
    """Whether exit 0 means that it is done. Otherwise it is a death like any other."""
    policy: RestartPolicy = field(default_factory=RestartPolicy)
    spare: tuple[str, ...] = ()
    """Arguments with which `program` waits, warm, and reads its real arguments from stdin, as one line of JSON; empty: no spare is kept."""
    spare_delay_seconds: float = 10.0
    """A spare is made so long after a start, when the rush of it is over."""


class Child:
    """A started process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.id: ProcessId = identify(process.pid)

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative if a signal ended it."""
        return self._process.returncode

    async def wait(self) -> int:
        """Wait for its end, then end what it has left behind in its session."""
        exit_code = await self._process.wait()
        self._signal_group(signal.SIGKILL)
        return exit_code

    async def tell(self, line: bytes) -> None:
        """Write to its stdin and close it. Raises `OSError` if nobody reads."""
        assert self._process.stdin is not None, "only a child that was started with a pipe can be told something"
        self._process.stdin.write(line)
        await self._process.stdin.drain()
        self._process.stdin.close()

    def terminate(self) -> None:
        """Ask it to end."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    def kill(self) -> None:
        """End it and everything in its session, now."""
        if self.exit_code is None:
            self._signal_group(signal.SIGKILL)

    async def stop(self, grace_seconds: float) -> None:
        """Ask it to end, and end it after `grace_seconds`."""
        self.terminate()
        try:
            await asyncio.wait_for(self.wait(), grace_seconds)
        except TimeoutError:
            self.kill()
            await self.wait()

    def _signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


async def start_child(
    words: Sequence[str], *, log: Path | None, environment: Mapping[str, str], with_pipe: bool = False, descriptors: Sequence[int] = ()
) -> Child:
    """Start a command; stdout and stderr are appended to `log`, after a line that says so, or go where those of this process go.

    It finds `descriptors` open under their numbers. Raises `OSError` if it cannot be started.
    """
    if log is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
        note(log, f"start: {' '.join(words)}")
    with contextlib.nullcontext() if log is None else log.open("ab", buffering=0) as file:
        process = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.PIPE if with_pipe else asyncio.subprocess.DEVNULL,
            stdout=file,
            stderr=None if log is None else asyncio.subprocess.STDOUT,
            env={**os.environ, **environment, **leashed()},
            pass_fds=tuple(descriptors),
            # Ctrl-C on the terminal is for the parent alone: it stops its children in their order.
            start_new_session=True,
        )
    return Child(process)


async def start_with_socket(words: Sequence[str], *, log: Path | None, environment: Mapping[str, str]) -> tuple[Child, socket.socket]:
    """As `start_child`, with a pair of sockets: the number of the child's end is its last word, the other end is given back."""
    near, far = socket.socketpair()
    with far:
        try:
            return await start_child((*words, str(far.fileno())), log=log, environment=environment, descriptors=(far.fileno(),)), near
        except BaseException:
            near.close()
            raise


def note(log: Path, sentence: str) -> None:
    """Append a line to a child's log, between its own."""
    with log.open("ab", buffering=0) as file:
        file.write(f"--- {datetime.now(UTC).isoformat(timespec='milliseconds')} {sentence}\n".encode())
