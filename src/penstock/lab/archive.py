"""A run as its directory remembers it, opened to look at."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.buffer.checks import Held
from penstock.buffer.client import group_of
from penstock.buffer.core import Buffer
from penstock.buffer.serving import STORE_FILE
from penstock.buffer.store import SqliteStore, is_written
from penstock.errors import CorruptError, UnknownError
from penstock.types import Group, Plan


@dataclass(frozen=True, slots=True)
class Archive(Held):
    """What is durable of one run, in the store and in its archive files."""

    run_dir: Path

    @property
    def is_written(self) -> bool:
        """Whether the run is alive: its buffer may change what is here."""
        return is_written(_store(self.run_dir))

    def plan(self, update: int) -> Plan:
        """The plan of an update. Raises `UnknownError` if it was never cut."""
        plan = self.buffer.store.plan(self.run, update)
        if plan is None or plan.void:
            raise UnknownError(f"update {update} was never cut")
        return plan

    def fetch(self, plan: Plan) -> tuple[Group, ...]:
        """The groups of a plan, every byte checked against the plan's digests."""
        return tuple(group_of(self.buffer.fetch(self.run, planned.id, planned.digest)) for planned in plan.groups)


@contextmanager
def opened(run_dir: Path) -> Iterator[Archive]:
    """The archive in a run directory. Raises `UnknownError` if there is none, `CorruptError` if the record of its run is damaged."""
    path = _store(run_dir)
    if not path.exists():
        raise UnknownError(f"{run_dir} is not the directory of a run: it has no buffer/{STORE_FILE}")
    store = SqliteStore(path, read_only=True)
    try:
        runs = store.runs()
        damaged = store.damaged_runs().difference(run.run for run in runs)
        if damaged:
            raise CorruptError(f"{path} holds a run that cannot be opened: {'; '.join(sentence for run in sorted(damaged) for sentence in store.corrupt(run))}")
        if len(runs) != 1:
            raise UnknownError(f"{path} holds {len(runs)} runs, expected one")
        yield Archive(Buffer(store, time.time), runs[0].run, run_dir)
    finally:
        store.close()


def _store(run_dir: Path) -> Path:
    return run_dir / "buffer" / STORE_FILE
