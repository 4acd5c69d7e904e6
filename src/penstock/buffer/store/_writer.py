"""The one thread that writes: takes everything that waits, commits it in one transaction, then says so in the order of submission.

takes: change sets         waits for: a change set, or to be stopped
gives: resolved futures    ends: on `stop`; never by itself, an error is remembered and every later submit is told
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from penstock.buffer.store._changes import ChangeSet, write_apart, write_together
from penstock.buffer.store._failures import store_error
from penstock.buffer.store._rows import Row
from penstock.errors import LimitError, PenstockError, StoreError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much may wait, and how much of it one transaction takes."""

    max_batch: int = 1024
    """Change sets in one transaction."""
    max_batch_bytes: int = 32 << 20
    max_waiting: int = 16_384
    """Change sets that wait for the disk; over it a submit fails with `LimitError`."""
    max_waiting_bytes: int = 512 << 20


class Writer:
    """Owns the writing connection. `settled` is called with change sets that need no overlay any more, before their futures are resolved."""

    def __init__(self, connection: sqlite3.Connection, path: Path, bounds: Bounds, settled: Callable[[Sequence[ChangeSet]], None]) -> None:
        self._connection = connection
        self._path = path
        self._bounds = bounds
        self._settled = settled
        self._waiting: deque[ChangeSet] = deque()
        self._waiting_bytes = 0
        self._damaged: deque[Row] = deque()
        self._failure: StoreError | None = None
        self._stopping = False
        self._last: Future[None] | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"store-writer {path.name}", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> StoreError | None:
        return self._failure

    def submit(self, change: ChangeSet) -> StoreError | LimitError | None:
        """Queue `change`; or say why not, and leave it alone."""
        num_bytes = change.num_bytes
        with self._changed:
            refusal = self.refusal(num_bytes)
            if refusal is not None:
                return refusal
            self._waiting.append(change)
            self._waiting_bytes += num_bytes
            self._last = change.future
            self._changed.notify()
        return None

    def refusal(self, num_bytes: int) -> StoreError | LimitError | None:
        """Why a change set of so many bytes would not be taken now, if it would not."""
        if self._failure is not None or self._stopping:
            return self._failure or StoreError(f"{self._path} is closed")
        full = len(self._waiting) >= self._bounds.max_waiting or self._waiting_bytes + num_bytes > self._bounds.max_waiting_bytes
        if full and self._waiting:
            return LimitError(f"{len(self._waiting)} change sets ({self._waiting_bytes} bytes) wait for the disk; try again later")
        return None

    def set_aside(self, row: Row) -> None:
        """Copy a damaged record to the quarantine when nothing else waits. It may fail: the record is not served anyway."""
        with self._changed:
            self._damaged.append(row)
            self._changed.notify()

    def flush(self, timeout_seconds: float) -> None:
        """Return when all that was submitted so far is durable or has failed."""
        last = self._last
        if last is not None:
            try:
                last.exception(timeout_seconds)
            except TimeoutError as error:
                raise StoreError(f"{self._path}: the disk took more than {timeout_seconds:.0f} s to make a write durable") from error

    def stop(self, *, forget: bool) -> None:
        """End the thread; what still waits is made durable first, or fails if it is to be forgotten."""
        with self._changed:
            self._stopping = True
            forgotten = self._take_all() if forget else []
            self._changed.notify()
        self._thread.join()
        self._give_up(forgotten, StoreError(f"{self._path} was reopened before the write was durable"))

    def close(self) -> None:
        """Let go of the file, after `stop`. The last connection to be closed moves the log into the tables, so this one should be it."""
        self._connection.close()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._waiting or self._damaged or self._stopping):
                    self._changed.wait()
                batch = self._take_batch()
                damaged = [] if batch else [self._damaged.popleft() for _ in range(len(self._damaged))]
            if batch:
                self._write(batch)
            elif damaged:
                self._quarantine(damaged)
            else:
                return

    def _take_batch(self) -> list[ChangeSet]:
        batch: list[ChangeSet] = []
        room = self._bounds.max_batch_bytes
        while self._waiting and len(batch) < self._bounds.max_batch and (room > 0 or not batch):
            change = self._waiting.popleft()
            room -= change.num_bytes
            self._waiting_bytes -= change.num_bytes
            batch.append(change)
        return batch

    def _take_all(self) -> list[ChangeSet]:
        everything = list(self._waiting)
        self._waiting.clear()
        self._waiting_bytes = 0
        return everything

    def _write(self, batch: list[ChangeSet]) -> None:
        try:
            refused = self._commit(batch)
        except Exception as error:  # whatever it was, somebody waits for these futures and must hear of it
            failure = store_error(error, self._path)
            with self._changed:
                self._failure = failure
                batch += self._take_all()
            self._rollback()
            self._give_up(batch, failure)
            return
        self._settled(batch)
        for change in batch:
            why = refused.get(change)
            if why is None:
                change.future.set_result(None)
            else:
                change.future.set_exception(why)

    def _commit(self, batch: list[ChangeSet]) -> dict[ChangeSet, PenstockError]:
        """Make `batch` durable but for the change sets that conflict."""
        refused: dict[ChangeSet, PenstockError] = {}
        self._connection.execute("BEGIN IMMEDIATE")
        if not write_together(self._connection, batch):
            self._connection.execute("ROLLBACK")
            self._connection.execute("BEGIN IMMEDIATE")
            refused = write_apart(self._connection, batch)
        self._connection.execute("COMMIT")
        return refused

    def _give_up(self, changes: list[ChangeSet], failure: StoreError) -> None:
        self._settled(changes)
        for change in changes:
            change.future.set_exception(failure)

    def _rollback(self) -> None:
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            # Nothing more can be done here: reopening throws the connection away and SQLite ignores the unfinished part of its log.
            pass

    def _quarantine(self, rows: list[Row]) -> None:
        try:
            self._connection.executemany("INSERT OR REPLACE INTO quarantine VALUES (?, ?, ?, ?, ?)", rows)
        except sqlite3.Error as error:
            log.warning("%d damaged records could not be copied to the quarantine of %s: %s", len(rows), self._path.name, error)
