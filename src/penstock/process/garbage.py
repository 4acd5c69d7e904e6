"""How often Python looks for cycles of objects that nobody uses any more."""

from __future__ import annotations

import gc

_YOUNG, _MIDDLE, _OLD = 50_000, 2, 200
"""New objects before the youngest are looked at, how often that happens before the middle ones are, and that before all are.

The middle ones are those that came since the last look at them. Each is looked at once however often one looks, but all else waits meanwhile: so better a
hundred thousand at a time than a million.
"""


def collect_seldom() -> None:
    """For a process that makes many objects and frees nearly all of them without cycles, once it has imported what it needs: a rollout worker.

    By default every 700 new objects are looked at, and again with those around them: a tenth of what an agent's turn costs. Here most objects of an episode
    are gone before anybody looks; a cycle lives on for a few megabytes of others. What was imported is never looked at again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)
