"""Writes change sets into an open transaction; neither function commits.

`write_together` is the way almost everything goes: a few statements for each table over many change sets. It expects that nothing conflicts, and
says so when something did; the caller then rolls back and calls `write_apart`, which looks at each change set on its own and finds the ones
that cannot be kept.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import groupby, repeat
from typing import NamedTuple, TypeVar

from penstock.buffer.store._bulk import write_rows
from penstock.buffer.store._items import forget_bodies, item_row, write_item, write_items
from penstock.buffer.store._rows import (
    JOURNAL_COLUMNS,
    MEMBERS,
    PAYLOAD_COLUMNS,
    SPEND,
    TABLES,
    Row,
    journal_key,
    journal_of,
    journal_row,
    moved_row,
    payload_of,
    payload_row,
    spent_rows,
)
from penstock.errors import ConflictError, CorruptError, InvalidError, InvariantError, PenstockError
from penstock.types import ArrivedItem, JournalEntry, Moved, Payload, Record, SpentGroups

R = TypeVar("R")

_INSERT_PAYLOAD = f"INSERT INTO payloads ({PAYLOAD_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)"
_INSERT_ENTRY = f"INSERT INTO journal ({JOURNAL_COLUMNS}) VALUES (?, ?, ?, ?, ?)"
# Not an update: that would leave the page of a large payload to a pointer of 40 bytes. Rows that come anew lie close together.
_MOVE = _INSERT_PAYLOAD.replace("INSERT", "INSERT OR REPLACE", 1)
_PROBE = "UPDATE probes SET count = count + 1"
# Groups stand before members, which look at them.
_KEY_LENGTHS = {table.write: len(table.key) for table in TABLES.values()} | {_MOVE: 2, SPEND: 2}
_STATEMENTS = tuple(_KEY_LENGTHS)

# What one ill-formed value can raise: a key that is taken, a number beyond 64 bits, a lone surrogate.
_REFUSALS = (sqlite3.IntegrityError, OverflowError, UnicodeError)

_SPENT_AT_ONCE = 256
"""Groups of one statement."""
_SPENT_BYTES = 64
"""What one of them costs while it waits."""

SUSTAINED_BATCH = 32
"""So many payloads at once mean that the writer is the narrow place. It then leaves them as they came, since compressing one takes longer than
writing it."""


class Rows(NamedTuple):
    """Records ready for the writer. Encoded by their author, so that an ill-formed one fails there."""

    records: Sequence[Record]
    replacing: list[tuple[str, Row]]
    """Statement and values for everything that is replaced by key."""
    items: list[tuple[ArrivedItem, Row]]
    payloads: list[Payload]
    entries: list[JournalEntry]
    num_bytes: int
    """What waiting for the disk costs in memory."""


def rows_of(records: Sequence[Record]) -> Rows:
    """Raises `InvalidError` for a record that cannot be encoded, `InvariantError` for one whose columns cannot be kept."""
    replacing: list[tuple[str, Row]] = []
    items: list[tuple[ArrivedItem, Row]] = []
    payloads: list[Payload] = []
    entries: list[JournalEntry] = []
    num_bytes = 0
    for record in records:
        table = TABLES.get(type(record))
        if table is not None:
            row = table.row(record)
            replacing.append((table.write, row))
            num_bytes += len(row[-1])
        elif isinstance(record, ArrivedItem):
            items.append((record, item_row(record)))
            num_bytes += len(record.body)
        elif isinstance(record, Payload):
            payloads.append(record)
            num_bytes += len(record.body)
        elif isinstance(record, JournalEntry):
            journal_key(record)
            entries.append(record)
            num_bytes += len(record.body)
        elif isinstance(record, SpentGroups):
            rows = spent_rows(record)
            replacing += zip(repeat(SPEND), rows)
            num_bytes += len(rows) * _SPENT_BYTES
        elif isinstance(record, Moved):
            row = moved_row(record)
            replacing.append((_MOVE, row))
            num_bytes += len(row[-1])
        else:
            raise TypeError(f"{type(record).__name__} is not kept")
    return Rows(records, replacing, items, payloads, entries, num_bytes)


class ChangeSet:
    """Records that become durable together or not at all. May grow until it is given to the writer."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.replacing: list[tuple[str, Row]] = []
        self.items: list[tuple[ArrivedItem, Row]] = []
        self.payloads: list[Payload] = []
        self.entries: list[JournalEntry] = []
        self.num_bytes = 0
        self.future: Future[None] = Future()
        # From here on it cannot be cancelled: a waiter that goes away must not keep the records from being written.
        self.future.set_running_or_notify_cancel()

    def add(self, rows: Rows) -> None:
        """Take more records in."""
        self.records += rows.records
        self.replacing += rows.replacing
        self.items += rows.items
        self.payloads += rows.payloads
        self.entries += rows.entries
        self.num_bytes += rows.num_bytes


def write_together(connection: sqlite3.Connection, changes: Sequence[ChangeSet]) -> bool:
    """Write all of `changes`. False if any of them conflicts with what is there: the transaction is then to be rolled back."""
    compress = sum(len(change.payloads) + len(change.items) for change in changes) < SUSTAINED_BATCH
    try:
        write_items(connection, [item for change in changes for item in change.items], compress=compress)
        write_rows(connection, _INSERT_PAYLOAD, (payload_row(payload, compress=compress) for change in changes for payload in change.payloads))
        write_rows(connection, _INSERT_ENTRY, (journal_row(entry) for change in changes for entry in change.entries))
        if not all(change.records for change in changes):
            connection.execute(_PROBE)
        return _write_rows(connection, changes)
    except _REFUSALS:
        return False


def write_apart(connection: sqlite3.Connection, changes: Sequence[ChangeSet]) -> dict[ChangeSet, PenstockError]:
    """Write each of `changes` that can be kept, in order. For every other one, why not; nothing of it is written."""
    refused: dict[ChangeSet, PenstockError] = {}
    for change in changes:
        connection.execute("SAVEPOINT change")
        try:
            _write_one(connection, change)
        except (ConflictError, InvariantError, InvalidError) as error:
            connection.execute("ROLLBACK TO change")
            refused[change] = error
        connection.execute("RELEASE change")
    return refused


def _write_rows(connection: sqlite3.Connection, changes: Sequence[ChangeSet]) -> bool:
    """Write the newest row of every key. False if a member has no group, or a group that was taken is not there."""
    newest: dict[str, dict[Row, Row]] = {statement: {} for statement in _STATEMENTS}
    for change in changes:
        for statement, row in change.replacing:
            newest[statement][row[: _KEY_LENGTHS[statement]]] = row
    spent = newest.pop(SPEND)
    for statement, rows in newest.items():
        if rows:
            written = write_rows(connection, statement, rows.values())
            if statement == MEMBERS.write and written != len(rows):
                return False
            if statement == _MOVE:
                forget_bodies(connection, list(rows))
    return _spend(connection, list(spent.values()))


def _spend(connection: sqlite3.Connection, rows: Sequence[Row]) -> bool:
    """Write what `spent_rows` gives. False if one of the groups is not ready, as one that was written again since: then each goes on its own."""
    written = 0
    for (run, seal), some in groupby(rows, key=lambda row: (row[0], row[2])):
        ids = [row[1] for row in some]
        for start in range(0, len(ids), _SPENT_AT_ONCE):
            page = ids[start : start + _SPENT_AT_ONCE]
            written += connection.execute(SPEND.format(", ".join("?" * len(page))), (seal, run, *page)).rowcount
    return written == len(rows)


def _write_one(connection: sqlite3.Connection, change: ChangeSet) -> None:
    try:
        for item, row in change.items:
            write_item(connection, item, row)
        for payload in change.payloads:
            _write_payload(connection, payload)
        for entry in change.entries:
            _write_entry(connection, entry)
        if not change.records:
            connection.execute(_PROBE)
        if not _write_rows(connection, [change]):
            raise InvariantError("a member was submitted before its group, or a group was taken that is not there")
    except _REFUSALS as error:
        raise InvalidError(f"the store cannot hold the value: {error}") from error


def _write_payload(connection: sqlite3.Connection, payload: Payload) -> None:
    where, key = "WHERE run = ? AND uid = ?", (payload.run, payload.uid)
    row = connection.execute(f"SELECT {PAYLOAD_COLUMNS} FROM payloads {where}", key).fetchone()
    held = None if row is None else _intact(payload_of, row)
    if held is None:
        # Either there is nothing, or something damaged that these bytes are better than.
        connection.execute(f"DELETE FROM payloads {where}", key)
        connection.execute(_INSERT_PAYLOAD, payload_row(payload, compress=True))
    elif held.digest != payload.digest or (isinstance(held, Payload) and held != payload):
        raise ConflictError(f"payload {payload.uid!r} of run {payload.run!r} is stored with other content")


def _write_entry(connection: sqlite3.Connection, entry: JournalEntry) -> None:
    where, key = "WHERE run = ? AND episode = ? AND idx = ?", (entry.run, entry.episode, entry.index)
    row = connection.execute(f"SELECT {JOURNAL_COLUMNS} FROM journal {where}", key).fetchone()
    held = None if row is None else _intact(journal_of, row)
    if held is None:
        connection.execute(f"DELETE FROM journal {where}", key)
        connection.execute(_INSERT_ENTRY, journal_row(entry))
    elif held != entry:
        raise ConflictError(f"entry {entry.index} of episode {entry.episode!r} of run {entry.run!r} is stored with other content")


def _intact(read: Callable[[Row], R], row: Row) -> R | None:
    try:
        return read(row)
    except CorruptError:
        return None
