"""All checks of a buffer, on a copy of its store: it may go on being written meanwhile."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from penstock.buffer.checks.files import archived
from penstock.buffer.checks.findings import Check, Held, finding
from penstock.buffer.checks.plans import fresh, named, planned, spent, used_once, whole
from penstock.buffer.checks.records import conserved, journalled, leased, stored, undamaged, unmixed
from penstock.buffer.core import Buffer
from penstock.buffer.findings import Finding
from penstock.buffer.store import SqliteStore
from penstock.buffer.store._failures import store_error
from penstock.errors import StoreError, UnknownError

CHECKS: tuple[tuple[str, Check], ...] = (
    ("D3", stored),
    ("D5", conserved),
    ("D5", spent),
    ("E1", planned),
    ("E2", used_once),
    ("E3", unmixed),
    ("E3", whole),
    ("E4", leased),
    ("F1", fresh),
    ("F2", named),
    ("D3", journalled),
)
"""What is looked into, under the promise that it would break. The archive's files and the store's damage follow."""


def check_store(path: Path, *, run: str | None = None) -> dict[str, tuple[Finding, ...]]:
    """Findings for each run in the store at `path`, or for one of them. Nothing but a temporary copy beside it is written.

    Raises `UnknownError` if there is no such run.
    """
    with snapshot(path) as store:
        buffer = Buffer(store, time.time)
        found = {name: check_run(Held(buffer, name), path.parent) for name in buffer.runs() if run in (None, name)}
        for name in sorted(store.damaged_runs().difference(buffer.runs())):
            if run in (None, name):
                # Its own record is: it can be opened no more, and is listed nowhere.
                found[name] = (Finding(promise="D3", checked="a run that cannot be opened", broken=store.corrupt(name)),)
        if run is not None and run not in found:
            raise UnknownError(f"no run {run}; there are {buffer.runs()}")
        return found


def check_run(held: Held, store_directory: Path) -> tuple[Finding, ...]:
    """Findings for one run."""
    looked = [finding(promise, check, held) for promise, check in CHECKS]
    files = partial(archived, store_directory=store_directory)
    files.__name__ = "archived"  # type: ignore[attr-defined]
    return (*looked, finding("D3", files, held), finding("D3", undamaged, held))


@contextlib.contextmanager
def snapshot(path: Path) -> Iterator[SqliteStore]:
    """The store at `path` as it is at one moment. The copy lies beside it, so that it finds the same archive, and is gone at the end."""
    if not path.is_file():
        raise UnknownError(f"there is no store at {path}")
    copy = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    try:
        try:
            source = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
            with contextlib.closing(source), contextlib.closing(sqlite3.connect(copy)) as target:
                source.backup(target)
                target.execute("PRAGMA journal_mode = DELETE")
        except (sqlite3.Error, OSError) as error:
            raise store_error(error, path) from error
        try:
            store = SqliteStore(copy, read_only=True)
            try:
                yield store
            finally:
                store.close()
        except StoreError as error:
            # Whoever reads it knows the store and not its copy, which is gone by then.
            raise type(error)(str(error).replace(copy.name, path.name)) from error
    finally:
        for leftover in path.parent.glob(f"{copy.name}*"):
            leftover.unlink()
