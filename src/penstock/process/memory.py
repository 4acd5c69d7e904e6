"""How much memory a process holds, and how much it may ask for. Linux tells and limits both; elsewhere nothing is known, and nothing is limited."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path

from penstock.process.identity import family

_HELD = ("RssAnon", "RssShmem", "VmSwap")
"""What is freed only by the process itself. Pages of files are left out: the system takes them back when it needs them."""


def held_bytes(pid: int) -> int:
    """Memory of a process and of all that it has started in its own session: what nobody can take back while they run. 0 where the kernel does not tell.

    Pages that a process shares with one that it has forked count for both.
    """
    return sum(sum(_status(member, _HELD)) for member in family(pid))


@contextlib.contextmanager
def limited_growth(num_bytes: int) -> Iterator[None]:
    """Let this process, and each that it starts, ask for so much memory more than it has now, for the time of a block: beyond it Python raises `MemoryError`.

    A lower limit that is there already stays.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = sum(_status(None, ("VmData",))) + num_bytes
    if soft == resource.RLIM_INFINITY or limit < soft:
        _limit_data(limit, hard)
    try:
        yield
    finally:
        _limit_data(soft, hard)


def _limit_data(soft: int, hard: int) -> None:
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _status(pid: int | None, names: tuple[str, ...]) -> list[int]:
    """Fields of `/proc/<pid>/status` that are given in kilobytes, in bytes; those that are there."""
    try:
        lines = Path(f"/proc/{'self' if pid is None else pid}/status").read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return [int(fields[name].split()[0]) << 10 for name in names if name in fields]
