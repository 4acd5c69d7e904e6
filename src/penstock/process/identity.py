"""Which process a number means: numbers are used again, so a process is known by its number and the moment it started."""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessId:
    """One process, for as long as the machine runs."""

    pid: int
    started_ticks: int
    """When it started, in the kernel's ticks since boot; 0 where the kernel does not tell."""

    @property
    def is_alive(self) -> bool:
        """Whether this very process still runs. A zombie does not."""
        if _has_proc():
            fields = _stat(self.pid)
            return fields is not None and fields[0] != "Z" and int(fields[19]) == self.started_ticks
        try:
            os.kill(self.pid, 0)
        except OSError:
            return False
        return True

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it alone, if it is still there."""
        if self.is_alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill_group(self) -> None:
        """End it and what it has started, if it is still there. For children that were started in a session of their own."""
        if self.is_alive:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)


def identify(pid: int) -> ProcessId:
    """The process that `pid` means now."""
    fields = _stat(pid)
    return ProcessId(pid=pid, started_ticks=0 if fields is None else int(fields[19]))


def process_table() -> str:
    """Names the processes among which numbers mean the same as here: those of this machine, since it was started, in this container. Empty where the kernel
    does not tell."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def cpu_seconds(pid: int) -> float:
    """CPU time that a running process and its reaped children have used; 0 if it is gone or the kernel does not tell."""
    fields = _stat(pid)
    return 0.0 if fields is None else sum(int(field) for field in fields[11:15]) / _TICKS_PER_SECOND


def is_computing(pid: int) -> bool:
    """Whether a process, or one that it has started, runs or wants to run at this moment. False where the kernel does not tell."""
    fields = _stat(pid)
    if fields is not None and fields[0] in "RD":
        return True
    return any(is_computing(child) for child in _children(pid))


def family(pid: int) -> list[int]:
    """A process and what it has started, but for sessions of their own. Empty if it is gone or the kernel does not tell."""
    fields = _stat(pid)
    return [] if fields is None else [pid, *_of_session(pid, fields[3])]


def _of_session(pid: int, session: str) -> list[int]:
    found = []
    for child in _children(pid):
        fields = _stat(child)
        if fields is not None and fields[3] == session:
            found += [child, *_of_session(child, session)]
    return found


def _children(pid: int) -> list[int]:
    return [int(child) for path in Path(f"/proc/{pid}/task").glob("*/children") for child in _words(path)]


def _has_proc() -> bool:
    return Path("/proc/self/stat").exists()


def _stat(pid: int) -> list[str] | None:
    """Fields of `/proc/<pid>/stat` from the state on; None if there is no such process."""
    try:
        # The name in parentheses may hold anything, spaces and parentheses too: what follows the last one is fields.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, UnicodeDecodeError):
        return None


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:  # it has ended meanwhile
        return []
