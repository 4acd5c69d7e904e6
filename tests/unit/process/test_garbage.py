"""A process that collects seldom still collects."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc, weakref
from penstock.process.garbage import collect_seldom

class Thing: ...

before = [Thing() for _ in range(10)]
collect_seldom()
cycle = Thing()
cycle.me = cycle
seen = weakref.ref(cycle)
del cycle
few = [[] for _ in range(1000)]
print(seen() is None, gc.get_freeze_count() > 10)
many = [[] for _ in range(60_000)]
print(seen() is None)
"""


def test_cycles_are_found_later_and_what_was_imported_is_left_alone() -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.split() == ["False", "True", "True"]


KEEPING = """
import gc
from penstock.process.garbage import collect_seldom

collect_seldom()
looked_at = []

def look(phase, info):
    if phase == "start" and info["generation"] == 1:
        looked_at.append(len(gc.get_objects(generation=0)) + len(gc.get_objects(generation=1)))

gc.callbacks.append(look)
kept = [[] for _ in range(1_500_000)]
print(max(looked_at) < 250_000)
"""


def test_no_look_is_at_very_many_objects_however_many_are_kept() -> None:
    ran = subprocess.run([sys.executable, "-c", KEEPING], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.split() == ["True"]
