"""Items that have arrived, as rows: the facts in one table, the bytes in another under the same number.

The bytes lie apart because they leave for the archive while the facts stay, and because a look at many items must not carry their bytes along. The
facts are checked by their checksum, as any record; the bytes by the digest that stands in the facts, so that they are hashed once.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import NamedTuple, TypeVar

from penstock.buffer.store._bulk import write_rows
from penstock.buffer.store._rows import Row, packed, signed_checksum
from penstock.errors import ConflictError, CorruptError, InputError
from penstock.types import ArrivedItem
from penstock.wire import decode_row, digest, encode_row

R = TypeVar("R")
KIND = "item"
_FORM = 1
"""Number of the order in which the facts stand."""


class ItemFacts(NamedTuple):
    """What is kept of an item beside its bytes, in this order. The second to the sixth are columns too."""

    form: int
    run: str
    uid: str
    group_id: str
    environment: str
    failure: str | None
    member: int
    problem_id: str
    reward: float | None
    kept: bool
    stored_at: float
    num_bytes: int
    digest: str


_COLUMNS = "run, uid, group_id, environment, failure, checksum, facts"
_SELECT = f"SELECT {_COLUMNS} FROM items"
_SELECT_WHOLE = f"SELECT {_COLUMNS}, encoding, body, number FROM items LEFT JOIN item_bodies USING (number)"
_INSERT = f"INSERT INTO items (number, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_INSERT_BODY = "INSERT INTO item_bodies (number, encoding, body) VALUES (?, ?, ?)"
_NEXT_NUMBER = "SELECT coalesce(max(number), -1) + 1 FROM items"
_OF_UID = "WHERE run = ? AND uid = ?"
_NUMBER_OF = f"SELECT number FROM items {_OF_UID}"


def item_row(item: ArrivedItem) -> Row:
    """The columns of an item but its number. Raises `InvalidError` or `InvariantError` if they could not be kept as they are."""
    facts = ItemFacts(
        _FORM,
        item.run,
        item.uid,
        item.group_id,
        item.environment,
        item.failure,
        item.member,
        item.problem_id,
        item.reward,
        item.kept,
        item.stored_at,
        item.num_bytes,
        item.digest,
    )
    encoded = encode_row(facts)
    return (*facts[1:6], signed_checksum(encoded), encoded)


def facts_of(row: Row) -> ItemFacts:
    """The facts of a row. Raises `CorruptError` if anything in the row is not what was written."""
    facts = row[6]
    if type(facts) is not bytes or signed_checksum(facts) != row[5]:
        raise CorruptError(f"item {row[1]!r} of run {row[0]!r} fails its checksum")
    try:
        found = decode_row(facts, ItemFacts)
    except InputError as error:
        raise CorruptError(f"item {row[1]!r} of run {row[0]!r} does not decode: {error}") from error
    if found.form != _FORM or found[1:6] != row[:5]:
        raise CorruptError(f"item {row[1]!r} of run {row[0]!r} lies under columns that are not its own")
    return found


def item_of(row: Row) -> ArrivedItem:
    """The item of a row, without its bytes. Raises `CorruptError` if anything in the row is not what was written."""
    found = facts_of(row)
    return ArrivedItem(
        run=found.run,
        uid=found.uid,
        group_id=found.group_id,
        member=found.member,
        environment=found.environment,
        problem_id=found.problem_id,
        reward=found.reward,
        failure=found.failure,
        kept=found.kept,
        stored_at=found.stored_at,
        num_bytes=found.num_bytes,
        digest=found.digest,
        body=b"",
    )


def write_items(connection: sqlite3.Connection, items: Sequence[tuple[ArrivedItem, Row]], *, compress: bool) -> None:
    """Write items that are new, each with its row. Raises `sqlite3.IntegrityError` if one is not."""
    if not items:
        return
    (first,) = connection.execute(_NEXT_NUMBER).fetchone()
    write_rows(connection, _INSERT, ((first + place, *row) for place, (_, row) in enumerate(items)))
    write_rows(connection, _INSERT_BODY, ((first + place, *packed(item.body, compress=compress)) for place, (item, _) in enumerate(items)))


def write_item(connection: sqlite3.Connection, item: ArrivedItem, row: Row) -> None:
    """Write one item; the same again changes nothing, damage is mended. Raises `ConflictError` if another is stored under its uid."""
    key = (item.run, item.uid)
    found = connection.execute(f"{_SELECT_WHOLE} {_OF_UID}", key).fetchone()
    if found is not None:
        try:
            held = item_of(found[:7])
        except CorruptError:
            held = None
        if held is not None and found[:7] != row:
            raise ConflictError(f"payload {item.uid!r} of run {item.run!r} is stored with other content")
        if held is not None and (_is_sound(held, found) or _has_moved(connection, key)):
            return
        number = found[9]
        connection.execute("DELETE FROM item_bodies WHERE number = ?", (number,))
        connection.execute("DELETE FROM items WHERE number = ?", (number,))
    else:
        (number,) = connection.execute(_NEXT_NUMBER).fetchone()
    connection.execute(_INSERT, (number, *row))
    connection.execute(_INSERT_BODY, (number, *packed(item.body, compress=True)))


def forget_bodies(connection: sqlite3.Connection, keys: Sequence[tuple[str, str]]) -> None:
    """Let go of the bytes of items (run, uid) that are in the archive now. Whoever is no item is left alone."""
    connection.executemany(f"DELETE FROM item_bodies WHERE number = ({_NUMBER_OF})", keys)


class ItemReads:
    """What can be asked of the items through one connection. `damaged` is told of kind, run, key, what is wrong, and the bytes."""

    def __init__(self, connection: sqlite3.Connection, damaged: Callable[[str, str, str, CorruptError, object], None]) -> None:
        self._connection = connection
        self._damaged = damaged

    def one(self, run: str, uid: str) -> ArrivedItem | None:
        """The item without its bytes; None if there is none. Raises `CorruptError` if it is damaged."""
        row = self._connection.execute(f"{_SELECT} {_OF_UID}", (run, uid)).fetchone()
        return None if row is None else self._open(item_of, row)

    def whole(self, run: str, uid: str) -> tuple[ArrivedItem, bytes | None] | None:
        """The item and its bytes, None in their place if they have moved; None if there is no such item. Raises `CorruptError`."""
        row = self._connection.execute(f"{_SELECT_WHOLE} {_OF_UID}", (run, uid)).fetchone()
        return None if row is None else self._open_whole(row)

    def many(self, where: str, values: Row) -> list[ArrivedItem]:
        """The items that are not damaged, without their bytes; the others are reported and left out."""
        return [item for row in self._connection.execute(f"{_SELECT} {where}", values) if (item := self._sound(row)) is not None]

    def of_groups(self, run: str, group_ids: Sequence[str]) -> Iterator[tuple[ItemFacts, bytes | None]]:
        """Items of some groups with their bytes, in the order they were stored; damaged ones are reported and left out.

        Their facts as they lie there: a read opens hundreds of thousands, and an `ArrivedItem` of each would cost as much as all the rest.
        """
        query = f"{_SELECT_WHOLE} WHERE run = ? AND group_id IN ({', '.join('?' * len(group_ids))})"
        rows = self._connection.execute(query, (run, *group_ids)).fetchall()
        # Sorted here: the database would carry the bodies through its sorter.
        for row in sorted(rows, key=itemgetter(9)):
            try:
                facts = self._open(facts_of, row[:7])
                yield facts, self._open_body(facts, row)
            except CorruptError:
                continue

    def _sound(self, row: Row) -> ArrivedItem | None:
        try:
            return self._open(item_of, row)
        except CorruptError:
            return None

    def _open(self, read: Callable[[Row], R], row: Row) -> R:
        try:
            return read(row)
        except CorruptError as error:
            self._damaged(KIND, str(row[0]), str(row[1]), error, row[6])
            raise

    def _open_whole(self, row: Row) -> tuple[ArrivedItem, bytes | None]:
        item = self._open(item_of, row[:7])
        return item, self._open_body(item, row)

    def _open_body(self, item: ArrivedItem | ItemFacts, row: Row) -> bytes | None:
        if row[8] is None:
            return None
        body = _body_of(row[7], row[8])
        if body is None or digest(body) != item.digest:
            error = CorruptError(f"payload {item.uid!r} of run {item.run!r} fails its checksum")
            self._damaged("payload", item.run, item.uid, error, row[8])
            raise error
        return body


def _body_of(encoding: object, stored: object) -> bytes | None:
    """The bytes of an item, not yet checked; None if they cannot even be unpacked."""
    if type(stored) is not bytes:
        return None
    if encoding != "zlib":
        return stored
    try:
        return zlib.decompress(stored)
    except zlib.error:
        return None


def _has_moved(connection: sqlite3.Connection, key: Row) -> bool:
    return connection.execute(f"SELECT 1 FROM payloads {_OF_UID}", key).fetchone() is not None


def _is_sound(held: ArrivedItem, row: Row) -> bool:
    body = _body_of(row[7], row[8])
    return body is not None and digest(body) == held.digest
