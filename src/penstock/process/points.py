"""Named places in the code at which a process can be told to die, so that tests and demos can kill it exactly there.

    PENSTOCK_DIE_AT=learner.after_record        dies the first time it gets there
    PENSTOCK_DIE_AT=learner.after_record:3      the third time
    PENSTOCK_DIE_ONCE=<file>                    only if the file does not exist yet; it is made just before

Without the variables nothing happens and nothing is looked up.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

POINTS = frozenset(
    {
        "buffer.after_commit",
        "buffer.before_commit",
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
_wanted, _, _count = os.environ.get("PENSTOCK_DIE_AT", "").partition(":")


def reach(point: str) -> None:
    """The process is at `point`. Usually nothing; SIGKILL if this is where it was told to die."""
    assert point in POINTS, point
    if point != _wanted:
        return
    _seen[point] += 1
    if _seen[point] != int(_count or 1):
        return
    once = os.environ.get("PENSTOCK_DIE_ONCE")
    if once is not None:
        try:
            Path(once).touch(exist_ok=False)
        except FileExistsError:
            return
    os.kill(os.getpid(), signal.SIGKILL)
