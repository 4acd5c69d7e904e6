"""`SqliteStore`: the store of one machine, in one SQLite file.

The log is written ahead (WAL) and synced on every commit (`synchronous=FULL`); one thread writes and commits whatever waits in one transaction, so
that the price of a sync is shared. Look-ups read through connections of their own and never wait for the writer.

    store.sqlite         the tables, see `_schema.py`
    store.sqlite-wal     committed, not yet moved into the tables
    store.sqlite.lock    held by the one process that may write
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar, cast

from penstock.buffer.store._bodies import Bodies
from penstock.buffer.store._changes import ChangeSet, rows_of
from penstock.buffer.store._connections import ReaderPool, open_for_writing
from penstock.buffer.store._damage import Damage
from penstock.buffer.store._failures import store_error
from penstock.buffer.store._lock import WriterLock
from penstock.buffer.store._overlay import Overlay
from penstock.buffer.store._reads import Reads
from penstock.buffer.store._rows import (
    ANNOTATIONS,
    ARCHIVES,
    GROUPS,
    JOURNAL_COLUMNS,
    LEASES,
    MEMBERS,
    PLANS,
    ROLLOUTS,
    RUNS,
    SESSIONS,
    Row,
    Table,
    journal_of,
    key_text,
)
from penstock.buffer.store._scans import Scans
from penstock.buffer.store._seen import Seen
from penstock.buffer.store._writer import Bounds, Writer
from penstock.buffer.store.places import Place, Shelf, by_subject, by_try, places
from penstock.buffer.store.protocol import History, StoredBody
from penstock.errors import CorruptError, PenstockError, StoreError
from penstock.types import (
    AnnotationRecord,
    ArchiveFile,
    ArrivedItem,
    GroupRecord,
    JournalEntry,
    LeaseRecord,
    MemberRecord,
    Moved,
    Payload,
    Plan,
    Record,
    RolloutRecord,
    RunRecord,
    Snapshot,
    all_filled,
)

R = TypeVar("R")
_FLUSH_SECONDS = 60.0
_ENOUGH_TO_SEND = 128
"""Payloads that are worth a commit of their own: the writer begins with them while what comes after them is decided."""


class SqliteStore:
    """A `Store` in the file `path`. One process writes; any number may open it with `read_only`, also meanwhile.

    May be called from several threads. Look-ups of one group or rollout take well under a millisecond and may be made on an event loop;
    `load`, the scans, `reopen` and `close` may not. An empty change set is a real durable write, to find out whether one is possible.

    A damaged record is never served: a look-up by its key raises `CorruptError`, any wider one leaves it out, except that `load` refuses to go on
    without a run's term, plans, outcomes or versions. Its bytes are copied to the table `quarantine`; writing the record again mends it.
    """

    def __init__(self, path: Path | str, *, read_only: bool = False, bounds: Bounds | None = None, max_bytes: int | None = None) -> None:
        """Open or make the store. Raises `StoreError` if somebody else writes it, `SchemaError` if it is not ours or too new.

        `max_bytes` bounds the tables; over it a write fails with `StoreFullError`.
        """
        self._path = Path(path)
        self._bounds = bounds or Bounds()
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._overlay = Overlay()
        self._joined: ChangeSet | None = None
        self._damage = Damage()
        self._readers = ReaderPool(self._path)
        self._scans = Scans(self._readers, self._damage.note)
        self._bodies = Bodies(self._path.parent, self._readers, self._damage, self.archive_files)
        self._writer: Writer | None = None
        self._writer_lock: WriterLock | None = None
        self._rollouts_seen: Seen | None = None
        """By uid; None where somebody else may write, and so know more."""
        self._groups_seen: Seen | None = None
        if not read_only:
            self._writer_lock = self._take_lock()
            try:
                self._writer = self._start_writer()
            except BaseException:
                self._writer_lock.release()
                raise
            self._rollouts_seen, self._groups_seen = (
                self._seen("SELECT run, uid FROM rollouts", "SELECT run, uid FROM items"),
                self._seen("SELECT run, id FROM groups"),
            )
        self._damage.remember(self._readers)

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    # Writing

    def submit(self, records: Sequence[Record]) -> Future[None]:
        change = ChangeSet()
        try:
            writer, rows = self._writing(), rows_of(records)
        except PenstockError as error:
            return _failed(error)
        # Under the lock that `_settled` takes: the change set must not be done before it is in the overlay.
        with self._lock:
            self._send()
            change.add(rows)
            refusal = writer.submit(change)
            if refusal is not None:
                return _failed(refusal)
            self._show(change, records)
        return change.future

    def join(self, records: Sequence[Record]) -> Future[None]:
        writer, rows = self._writing(), rows_of(records)
        with self._lock:
            change = self._joined
            if change is not None and change.num_bytes > self._bounds.max_batch_bytes:
                self._send()
                change = None
            if change is None:
                change = self._joined = ChangeSet()
            refusal = writer.refusal(change.num_bytes + rows.num_bytes)
            if refusal is not None:
                raise refusal
            change.add(rows)
            self._show(change, records)
            if len(change.payloads) >= _ENOUGH_TO_SEND:
                self._send()
        return change.future

    def send(self) -> None:
        with self._lock:
            self._send()

    def reopen(self) -> None:
        if self._writer is None:
            self._readers.close()
            return
        # Without the lock another process may be writing by now.
        if self._writer_lock is None:
            raise StoreError(f"{self._path} is closed")
        self._writer.stop(forget=True)
        self.send()
        self._readers.close()
        self._writer.close()
        self._writer = self._start_writer()

    def close(self) -> None:
        self.send()
        if self._writer is not None:
            self._writer.stop(forget=False)
        self._readers.close()
        if self._writer is not None:
            self._writer.close()
        if self._writer_lock is not None:
            self._writer_lock.release()
            self._writer_lock = None

    # Look-ups

    def runs(self) -> tuple[RunRecord, ...]:
        pending = self._pending(("run",))
        with self._readers.connection() as connection:
            stored = self._reads(connection).many(RUNS, "WHERE kind = ?", (RUNS.kind,))
        return tuple(sorted(({record.run: record for record in stored} | pending).values(), key=lambda record: record.run))

    def load(self, run: str) -> Snapshot | None:
        if self._writer is not None:
            self.send()
            self._writer.flush(_FLUSH_SECONDS)
        with self._readers.connection() as connection:
            # One transaction: everything in a snapshot is of the same moment.
            connection.execute("BEGIN")
            try:
                return self._reads(connection).snapshot(run)
            finally:
                connection.execute("ROLLBACK")

    def group(self, run: str, group_id: str) -> GroupRecord | None:
        if self._groups_seen is not None and not self._groups_seen.may_have(run, group_id):
            return None
        with self._lock:
            pending = self._overlay.group(run, group_id)
        if pending is not None:
            return pending
        with self._readers.connection() as connection:
            return self._reads(connection).one(GROUPS, "WHERE run = ? AND id = ?", (run, group_id))

    def rollout(self, run: str, uid: str) -> RolloutRecord | None:
        if self._rollouts_seen is not None and not self._rollouts_seen.may_have(run, uid):
            return None
        with self._lock:
            pending = self._overlay.get((("rollout", run), uid)) or self._overlay.item(run, uid)
        if pending is not None:
            return pending.rollout if isinstance(pending, ArrivedItem) else cast(RolloutRecord, pending)
        with self._readers.connection() as connection:
            reads = self._reads(connection)
            item = reads.items.one(run, uid)
            return item.rollout if item is not None else reads.one(ROLLOUTS, "WHERE run = ? AND uid = ?", (run, uid))

    def plan(self, run: str, update: int) -> Plan | None:
        return self._one(PLANS, (("plan", run), update), "WHERE run = ? AND kind = 'plan' AND key = ?", (run, update))

    def lease(self, run: str, lease: str) -> LeaseRecord | None:
        return self._one(LEASES, (("lease", run), lease), "WHERE run = ? AND kind = 'lease' AND key = ?", (run, lease))

    def members(self, run: str, group_id: str) -> tuple[MemberRecord, ...]:
        slots = all_filled(self._of_group(MEMBERS, "member", run, group_id), self._of_group(ROLLOUTS, "rollout", run, group_id))
        slots += [item.slot for item in self._items_of(run, group_id)]
        return tuple(sorted(slots, key=lambda member: member.member))

    def rollouts(self, run: str, group_id: str) -> tuple[RolloutRecord, ...]:
        tries = [*self._of_group(ROLLOUTS, "rollout", run, group_id), *(item.rollout for item in self._items_of(run, group_id))]
        return tuple(sorted(tries, key=by_try))

    def annotations(self, run: str, group_id: str) -> tuple[AnnotationRecord, ...]:
        return tuple(sorted(self._of_group(ANNOTATIONS, "annotation", run, group_id), key=by_subject))

    def payload(self, run: str, uid: str) -> Payload:
        with self._lock:
            pending = self._overlay.get((("payload", run), uid)) or self._overlay.item(run, uid)
        if pending is not None:
            return pending.payload if isinstance(pending, ArrivedItem) else cast(Payload, pending)
        return self._bodies.payload(run, uid)

    def moved(self, run: str, uid: str) -> Moved | None:
        """Where in the archive the bytes of a rollout or annotation are; None if they are here, or nowhere."""
        return self._bodies.moved(run, uid)

    def bodies(self, run: str, group_ids: Sequence[str]) -> dict[str, list[StoredBody]]:
        return self._bodies.of_groups(run, group_ids)

    def journal(self, run: str, episode: str, first: int = 0) -> tuple[JournalEntry, ...]:
        entries: dict[Any, Any] = {}
        pending = {index: entry for index, entry in self._pending(("journal", run, episode)).items() if index >= first}
        with self._readers.connection() as connection:
            rows = connection.execute(f"SELECT {JOURNAL_COLUMNS} FROM journal WHERE run = ? AND episode = ? AND idx >= ?", (run, episode, first)).fetchall()
        for row in rows:
            try:
                entries[row[2]] = journal_of(row)
            except CorruptError as error:
                self._damage.note("journal", run, key_text(episode, row[2]), error, row[-1])
                # An episode cannot be continued from a history with a hole.
                raise
        return tuple(sorted((entries | pending).values(), key=lambda entry: entry.index))

    def episodes(self, run: str) -> tuple[str, ...]:
        with self._readers.connection() as connection:
            rows = connection.execute("SELECT DISTINCT episode FROM journal WHERE run = ? ORDER BY episode", (run,)).fetchall()
        return tuple(episode for (episode,) in rows)

    def history(self, run: str, group_id: str) -> History:
        return History.of(group_id, self._naming(PLANS, run, group_id), self._naming(LEASES, run, group_id), self._naming(SESSIONS, run, group_id))

    def rollouts_since(self, run: str, stored_at: float) -> Iterator[RolloutRecord]:
        return self._scans.rollouts_since(run, stored_at)

    def groups_since(self, run: str, ready_order: int) -> tuple[GroupRecord, ...]:
        return self._scans.groups_since(run, ready_order)

    def scan_groups(self, run: str) -> Iterator[GroupRecord]:
        return self._scans.groups(run)

    def scan_rollouts(self, run: str) -> Iterator[RolloutRecord]:
        return self._scans.rollouts(run)

    def settled_groups(self, run: str, limit: int) -> tuple[GroupRecord, ...]:
        return self._scans.settled_groups(run, limit)

    def archive_files(self, run: str) -> tuple[ArchiveFile, ...]:
        pending = self._pending(("archive", run))
        with self._readers.connection() as connection:
            stored = self._reads(connection).many(ARCHIVES, "WHERE run = ? AND kind = ?", (run, ARCHIVES.kind))
        return tuple(sorted(({file.number: file for file in stored} | pending).values(), key=lambda file: file.number))

    def next_archive_number(self, run: str) -> int:
        pending = self._pending(("archive", run))
        with self._readers.connection() as connection:
            (last,) = connection.execute("SELECT coalesce(max(key), -1) FROM facts WHERE run = ? AND kind = ?", (run, ARCHIVES.kind)).fetchone()
        return 1 + max(int(last), *map(int, pending), -1)

    def corrupt(self, run: str | None = None) -> tuple[str, ...]:
        return tuple(sentence for found, sentence in self._damage.by_run() if run in (None, found))

    def damaged_runs(self) -> frozenset[str]:
        """Runs of which something was found to be damaged; they may not be listed for it."""
        return frozenset(found for found, _ in self._damage.by_run())

    # Inside

    def _take_lock(self) -> WriterLock:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            return WriterLock(self._path)
        except OSError as error:
            raise store_error(error, self._path) from error

    def _start_writer(self) -> Writer:
        try:
            connection = open_for_writing(self._path, self._max_bytes)
        except (sqlite3.Error, OSError) as error:
            raise store_error(error, self._path) from error
        writer = Writer(connection, self._path, self._bounds, self._settled)
        self._damage.set_aside = writer.set_aside
        return writer

    def _seen(self, *queries: str) -> Seen:
        seen = Seen()
        with self._readers.connection() as connection:
            for query in queries:
                for run, value in connection.execute(query):
                    seen.add(run, value)
        return seen

    def _writing(self) -> Writer:
        if self._writer is None:
            raise StoreError(f"{self._path} is open read-only")
        return self._writer

    def _send(self) -> None:
        """Give the writer what has joined. The caller has the lock."""
        change, self._joined = self._joined, None
        refusal = self._writer.submit(change) if change is not None and self._writer is not None else None
        if change is not None and refusal is not None:
            self._overlay.drop(change)
            change.future.set_exception(refusal)

    def _show(self, change: ChangeSet, records: Sequence[Record]) -> None:
        """Let look-ups see records that were just submitted. The caller has the lock."""
        self._overlay.put(change, records)
        if self._rollouts_seen is None or self._groups_seen is None:
            return
        for record in records:
            if type(record) is RolloutRecord or type(record) is ArrivedItem:
                self._rollouts_seen.add(record.run, record.uid)
            elif type(record) is GroupRecord and not self._groups_seen.may_have(record.run, record.id):
                self._groups_seen.add(record.run, record.id)

    def _settled(self, changes: Sequence[ChangeSet]) -> None:
        with self._lock:
            for change in changes:
                self._overlay.drop(change)

    def _pending(self, shelf: Shelf) -> dict[Any, Any]:
        """What waits for the disk. Looked at before the tables: what has left the overlay is in them."""
        with self._lock:
            return self._overlay.shelf(shelf)

    def _one(self, table: Table[R], place: Place, where: str, values: Row) -> R | None:
        with self._lock:
            pending = self._overlay.get(place)
        if pending is not None:
            return cast(R, pending)
        with self._readers.connection() as connection:
            return self._reads(connection).one(table, where, values)

    def _of_group(self, table: Table[R], kind: str, run: str, group_id: str) -> list[R]:
        pending = self._pending((kind, run, group_id))
        with self._readers.connection() as connection:
            stored = self._reads(connection).many(table, "WHERE run = ? AND group_id = ?", (run, group_id))
        return list(({places(cast(Record, record))[0][1]: record for record in stored} | pending).values())

    def _naming(self, table: Table[R], run: str, word: str) -> list[R]:
        """Facts with a word in them. The database looks for it in their bodies, which is quicker by far than to decode them."""
        pending = self._pending((table.kind, run))
        with self._readers.connection() as connection:
            stored = self._reads(connection).many(table, "WHERE run = ? AND kind = ? AND instr(body, ?)", (run, table.kind, word.encode()))
        return list(({places(cast(Record, record))[0][1]: record for record in stored} | pending).values())

    def _items_of(self, run: str, group_id: str) -> list[ArrivedItem]:
        with self._lock:
            pending = self._overlay.items_of(run, group_id)
        with self._readers.connection() as connection:
            stored = self._reads(connection).items.many("WHERE run = ? AND group_id = ?", (run, group_id))
        return list({item.uid: item for item in (*stored, *pending)}.values())

    def _reads(self, connection: sqlite3.Connection) -> Reads:
        return Reads(connection, self._damage.note)


def _failed(error: PenstockError) -> Future[None]:
    future: Future[None] = Future()
    future.set_exception(error)
    return future
