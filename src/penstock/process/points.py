"""Named places in the code at which a process can be told to die, so that tests and demos can kill it exactly there.

    PENSTOCK_DIE_AT=learner.after_record        dies the first time it gets there
    PENSTOCK_DIE_AT=learner.after_record:3      the third time
    PENSTOCK_DIE_ONCE=<file>                    only if the file does not exist yet; it is made just before
    PENSTOCK_DIE_PLAN=<file>                    one such point a line: each part dies at its own lines in order, one in each life

A line of a plan, numbered from 0, is done when `<file>.<number>` exists; that is made just before. Without the variables nothing happens and nothing
is looked up.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

POINTS = frozenset(
    {
        "buffer.after_commit",
        "buffer.archive_registered",
        "buffer.archive_written",
        "buffer.before_commit",
        "gateway.after_journal",
        "gateway.before_journal",
        "learner.after_checkpoint_dir",
        "learner.after_cut",
        "learner.after_fetch",
        "learner.after_keep",
        "learner.after_publish",
        "learner.after_push",
        "learner.after_record",
        "learner.after_step",
        "learner.after_term",
        "learner.after_weights_file",
        "orchestrator.after_start",
        "orchestrator.running",
        "server.after_swap",
        "server.before_swap",
        "server.mid_reply",
        "worker.after_claim",
        "worker.after_write",
        "worker.before_write",
        "worker.mid_episode",
    }
)
"""Every point there is."""

_seen: Counter[str] = Counter()
_told = bool(os.environ.keys() & {"PENSTOCK_DIE_AT", "PENSTOCK_DIE_PLAN"})


def reach(point: str) -> None:
    """The process is at `point`. Usually nothing; SIGKILL if this is where it was told to die."""
    assert point in POINTS, point
    if not _told:
        return
    _seen[point] += 1
    death = _death(point.partition(".")[0])
    if death is not None and (death.point, death.count) == (point, _seen[point]) and death.is_first():
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Death:
    point: str
    count: int
    """Which time that the point is reached."""
    marker: Path | None
    """Says that it has happened."""

    def is_first(self) -> bool:
        """Whether it has not happened yet; from now on it has."""
        if self.marker is None:
            return True
        try:
            self.marker.touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


# Once in a life: a process that lives on after its turn was taken by another must not take the next one.
@cache
def _death(part: str) -> _Death | None:
    """Where this process, being that part, is to die."""
    at, plan = os.environ.get("PENSTOCK_DIE_AT"), os.environ.get("PENSTOCK_DIE_PLAN")
    if at is not None:
        once = os.environ.get("PENSTOCK_DIE_ONCE")
        return _parsed(at, Path(once) if once else None)
    deaths = (_parsed(line, Path(f"{plan}.{number}")) for number, line in enumerate(Path(plan).read_text().splitlines())) if plan else ()
    return next((death for death in deaths if death.point.startswith(f"{part}.") and death.marker and not death.marker.exists()), None)


def _parsed(text: str, marker: Path | None) -> _Death:
    point, _, count = text.partition(":")
    return _Death(point=point, count=int(count or 1), marker=marker)
