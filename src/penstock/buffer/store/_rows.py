"""Records as rows and back. A row that does not follow from its own body, bit for bit, is never turned into a record."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from penstock.buffer.store.places import cursor, is_settled
from penstock.errors import CorruptError, InputError, InvariantError, SchemaError
from penstock.types import (
    AnnotationRecord,
    ArchiveFile,
    CheckpointRecord,
    GroupRecord,
    GroupState,
    JournalEntry,
    LeaseRecord,
    LeaseState,
    MemberRecord,
    MemberState,
    Moved,
    Outcome,
    Payload,
    Plan,
    ReaderRecord,
    RolloutRecord,
    RunRecord,
    SessionRecord,
    SpentGroups,
    TermRecord,
    Version,
    spent_group,
)
from penstock.wire import checksum, decode_msgpack, encode_msgpack

R = TypeVar("R")
Row = tuple[Any, ...]
"""Values of `columns`, then checksum and body."""
_COLUMN_TYPES = frozenset((int, str, float, type(None)))

_MADE_BY_THE_LEDGER = frozenset((GroupRecord, MemberRecord, RolloutRecord, LeaseRecord))
"""Made of values that were checked when they came, by nobody else, and many or of many parts: they are not looked at again."""

_COMPRESS_FROM_BYTES = 4096
"""Smaller payloads save nothing: SQLite gives them a page anyway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table(Generic[R]):
    """How one noun is kept: which table, which columns beside the body, and which of them are the key."""

    name: str
    noun: type[R]
    kind: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    """The first of the columns."""
    values: Callable[[R], Row]
    write: str
    """Statement that puts a row in place of the older one."""

    @property
    def select(self) -> str:
        """The rows, ready for a WHERE."""
        return f"SELECT {', '.join(self.columns)}, checksum, body FROM {self.name}"

    def row(self, record: R) -> Row:
        """The row of a record. Raises `InvalidError` if it cannot be encoded, `InvariantError` if a column holds what SQLite would not give back."""
        values = self.values(record)
        check_columns(self.columns, values, self.kind)
        body = encode_msgpack(record, checked=self.noun not in _MADE_BY_THE_LEDGER)
        return (*values, signed_checksum(body), body)

    def record(self, row: Row) -> R:
        """The record of a row. Raises `CorruptError` if anything in the row is not what was written."""
        body = row[-1]
        if type(body) is not bytes or signed_checksum(body) != row[-2]:
            raise CorruptError(f"{self.describe(row)} fails its checksum")
        try:
            record = decode_msgpack(body, self.noun)
        except (InputError, SchemaError) as error:
            raise CorruptError(f"{self.describe(row)} does not decode: {error}") from error
        if self.values(record) != row[:-2]:
            raise CorruptError(f"{self.describe(row)} lies under columns that are not its own")
        return record

    def key_text(self, row: Row) -> str:
        return key_text(*row[1 : len(self.key)])

    def describe(self, row: Row) -> str:
        return f"{self.kind} {self.key_text(row)!r} of run {row[0]!r}"


def check_columns(columns: tuple[str, ...], values: Row, kind: str) -> None:
    """Raise `InvariantError` for a value that SQLite would keep as something else. It takes a numpy integer for bytes: the row could never be read again."""
    if _COLUMN_TYPES.issuperset(map(type, values)):
        return
    for column, value in zip(columns, values, strict=True):
        if type(value) not in _COLUMN_TYPES:
            raise InvariantError(f"the column {column} of a {kind} must be an int, a str, a float or None, got the {type(value).__name__} {value!r}")


def key_text(*parts: object) -> str:
    """A record's key inside its run, as words; names its damage."""
    return " ".join(str(part) for part in parts)


def signed_checksum(data: bytes) -> int:
    """The checksum as SQLite keeps integers."""
    value = checksum(data)
    return value - (1 << 64) if value >> 63 else value


def _upsert(name: str, columns: tuple[str, ...], key: tuple[str, ...]) -> str:
    every = (*columns, "checksum", "body")
    changes = ", ".join(f"{column} = excluded.{column}" for column in every if column not in key)
    return f"INSERT INTO {name} ({', '.join(every)}) VALUES ({', '.join('?' * len(every))}) ON CONFLICT ({', '.join(key)}) DO UPDATE SET {changes}"


def _table(name: str, noun: type[R], columns: tuple[str, ...], num_key: int, values: Callable[[R], Row], *, kind: str, write: str = "") -> Table[R]:
    key = columns[:num_key]
    return Table(name=name, noun=noun, kind=kind, columns=columns, key=key, values=values, write=write or _upsert(name, columns, key))


def _group_values(record: GroupRecord) -> Row:
    dropped = record.state is GroupState.DROPPED
    place = cursor(record.id)
    return (
        record.run,
        record.id,
        record.state.value,
        record.environment,
        record.purpose.value,
        record.reason if dropped else None,
        None if place is None else place[0],
        None if place is None else (place[1] << 32) + place[2],
        record.order,
        record.ready_order,
        None if record.ready_at is None else record.tokens,
        record.longest if dropped else None,
        None if record.state is GroupState.OPEN else record.filled or None,
        1 if record.archive is None and is_settled(record) else None,
        None,
    )


_GROUP_COLUMNS = (
    *("run", "id", "state", "environment", "purpose", "reason", "source", "cursor", "ord", "ready_ord", "ready_tokens", "lost_longest", "filled"),
    *("to_archive", "spent"),
)
_STATE, _TO_ARCHIVE, _SPENT = (_GROUP_COLUMNS.index(column) for column in ("state", "to_archive", "spent"))


class _Groups(Table[GroupRecord]):
    """Groups. One that a read took has the body of the ready group that it was."""

    __slots__ = ()

    def record(self, row: Row) -> GroupRecord:
        seal = row[_SPENT]
        if seal is None:
            return super().record(row)
        lease, spent_at = spent_of(seal, self.describe(row))
        before = list(row)
        before[_STATE], before[_TO_ARCHIVE], before[_SPENT] = GroupState.READY.value, None, None
        group = spent_group(super().record(tuple(before)), lease, spent_at)
        if (row[_STATE], row[_TO_ARCHIVE]) != (group.state.value, 1):
            raise CorruptError(f"{self.describe(row)} lies under columns that are not its own")
        return group


# The sign keeps the database from looking at all groups that are ready.
SPEND = "UPDATE groups SET state = 'spent', to_archive = 1, spent = ? WHERE run = ? AND id IN ({}) AND +state = 'ready'"
"""Spends ready groups: what `spent` is to be, the run, and the ids in the place of the braces."""


def spent_rows(spent: SpentGroups) -> list[Row]:
    """Run, id and `spent` of each group."""
    seal = f"{spent.spent_at!r} {spent.lease}".encode()
    sealed = checksum(seal).to_bytes(8, "big") + seal
    return [(spent.run, group.id, sealed) for group in spent.groups]


def spent_of(sealed: object, where: str) -> tuple[str, float]:
    """Lease and time in a `spent`. Raises `CorruptError` if it is not as it was written."""
    if type(sealed) is not bytes or checksum(sealed[8:]).to_bytes(8, "big") != sealed[:8]:
        raise CorruptError(f"{where} fails its checksum")
    spent_at, _, lease = sealed[8:].decode().partition(" ")
    return lease, float(spent_at)


GROUPS: Table[GroupRecord] = _Groups(
    name="groups",
    noun=GroupRecord,
    kind="group",
    columns=_GROUP_COLUMNS,
    key=_GROUP_COLUMNS[:2],
    values=_group_values,
    write=_upsert("groups", _GROUP_COLUMNS, _GROUP_COLUMNS[:2]),
)

# A member finds environment and purpose at its group. Without the group nothing is inserted, and the writer sees that a row is missing.
MEMBERS = _table(
    "members",
    MemberRecord,
    ("run", "group_id", "member", "state", "reason"),
    3,
    lambda r: (r.run, r.group_id, r.member, r.state.value, r.reason if r.state is MemberState.FAILED else None),
    kind="member",
    write="""
    INSERT INTO members (run, group_id, member, state, reason, checksum, body, environment, purpose)
    SELECT new.*, groups.environment, groups.purpose
    FROM (VALUES (?, ?, ?, ?, ?, ?, ?)) AS new CROSS JOIN groups WHERE groups.run = new.column1 AND groups.id = new.column2
    ON CONFLICT (run, group_id, member) DO UPDATE SET state = excluded.state, reason = excluded.reason, checksum = excluded.checksum, body = excluded.body
    """,
)
ROLLOUTS = _table("rollouts", RolloutRecord, ("run", "uid", "group_id"), 2, lambda r: (r.run, r.uid, r.group_id), kind="rollout")
ANNOTATIONS = _table(
    "annotations",
    AnnotationRecord,
    ("run", "group_id", "rollout_uid", "name", "step"),
    5,
    # A key may not be NULL. Steps count from 0, so -1 is free for "the whole rollout" and sorts first.
    lambda r: (r.run, r.group_id, r.rollout_uid, r.name, -1 if r.step is None else r.step),
    kind="annotation",
)


def _facts(noun: type[R], kind: str, key: Callable[[R], str | int], live: Callable[[R], int] = lambda _: True) -> Table[R]:
    return _table("facts", noun, ("run", "kind", "key", "live"), 3, lambda r: (r.run, kind, key(r), int(live(r))), kind=kind)  # type: ignore[attr-defined]


RUNS = _facts(RunRecord, "run", lambda r: 0)
SESSIONS = _facts(SessionRecord, "session", lambda r: r.session, lambda r: not r.ended)
TERMS = _facts(TermRecord, "term", lambda r: 0)
PLANS = _facts(Plan, "plan", lambda r: r.update)
OUTCOMES = _facts(Outcome, "outcome", lambda r: r.update)
VERSIONS = _facts(Version, "version", lambda r: r.version)
CHECKPOINTS = _facts(CheckpointRecord, "checkpoint", lambda r: r.update, lambda r: r.kept)
# The fence stands where others say whether they are live: above 0 while the lease is taken, below once it is over. So the largest is found without bodies.
LEASES = _facts(LeaseRecord, "lease", lambda r: r.lease, lambda r: r.fence if r.state is LeaseState.TAKEN else -r.fence)
READERS = _facts(ReaderRecord, "reader", lambda r: r.reader)
ARCHIVES = _facts(ArchiveFile, "archive", lambda r: r.number, lambda r: r.retired_at is None)

TABLES: dict[type, Table[Any]] = {
    table.noun: table
    for table in (RUNS, GROUPS, MEMBERS, ROLLOUTS, ANNOTATIONS, SESSIONS, TERMS, PLANS, OUTCOMES, VERSIONS, CHECKPOINTS, ARCHIVES, LEASES, READERS)
}
"""Everything but payloads and journal entries, which are bytes already."""

PAYLOAD_COLUMNS = "run, uid, content_type, digest, encoding, checksum, body"
JOURNAL_COLUMNS = "run, episode, idx, checksum, body"


def packed(body: bytes, *, compress: bool) -> tuple[str, bytes]:
    """Encoding and bytes under which a body is kept."""
    if compress and len(body) >= _COMPRESS_FROM_BYTES:
        smaller = zlib.compress(body, 1)
        if len(smaller) < len(body):
            return "zlib", smaller
    return "plain", body


def payload_row(payload: Payload, *, compress: bool) -> Row:
    encoding, stored = packed(payload.body, compress=compress)
    head = (payload.run, payload.uid, payload.content_type, payload.digest, encoding)
    return (*head, _sealed(head, stored), stored)


def moved_row(moved: Moved) -> Row:
    """The row that takes the place of a payload whose bytes are in an archive file."""
    stored = f"{moved.row} {moved.file}".encode()
    head = (moved.run, moved.uid, moved.content_type, moved.digest, "archived")
    return (*head, _sealed(head, stored), stored)


def payload_of(row: Row) -> Payload | Moved:
    """The payload of a row, or where it is now; or `CorruptError`."""
    run, uid, content_type, digest, encoding, seal, stored = row
    where = f"payload {uid!r} of run {run!r}"
    if type(stored) is not bytes or _sealed(row[:5], stored) != seal:
        raise CorruptError(f"{where} fails its checksum")
    if encoding == "archived":
        place, _, file = stored.decode().partition(" ")
        return Moved(run=run, uid=uid, content_type=content_type, digest=digest, file=file, row=int(place))
    body = zlib.decompress(stored) if encoding == "zlib" else stored
    return Payload(run=run, uid=uid, content_type=content_type, body=body, digest=digest)


def journal_row(entry: JournalEntry) -> Row:
    head = journal_key(entry)
    return (*head, _sealed(head, entry.body), entry.body)


def journal_key(entry: JournalEntry) -> Row:
    """Run, episode and index. Raises `InvariantError` as `Table.row` does."""
    key = (entry.run, entry.episode, entry.index)
    check_columns(("run", "episode", "idx"), key, "journal entry")
    return key


def journal_of(row: Row) -> JournalEntry:
    """The entry of a row, or `CorruptError`."""
    run, episode, index, seal, body = row
    if type(body) is not bytes or _sealed(row[:3], body) != seal:
        raise CorruptError(f"journal {key_text(episode, index)!r} of run {run!r} fails its checksum")
    return JournalEntry(run=run, episode=episode, index=index, body=body)


def _sealed(head: Row, stored: bytes) -> int:
    """Checksum of bytes together with the columns that say what they are."""
    return signed_checksum("\0".join(map(str, head)).encode("utf-8", "surrogateescape") + b"\0" + stored)
