"""`MemoryStore`: a `Store` on a `FakeDisk`, for simulations. Its owner decides when a sync happens, so a crash can fall anywhere.

Records live in memory and in one log, a frame for each change set. Opening reads the log again, up to the first frame that is not whole; unless a
later frame knows that it had been synced, for then it is damage, which is reported and never served.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

from penstock.buffer.store.places import Place, Shelf, Shelves, by_subject, by_try, cursor, is_settled, places, spread
from penstock.buffer.store.protocol import History, StoredBody
from penstock.buffer.store.tallies import GroupCount, MemberCount, cursors, filled_members, tallies
from penstock.errors import ConflictError, CorruptError, InvariantError, PenstockError, StoreError, StoreFullError, UnknownError
from penstock.testing._log import Frame, LogCodec
from penstock.testing.disk import FakeDisk
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
    Outcome,
    Payload,
    Plan,
    ReaderRecord,
    Record,
    RolloutRecord,
    RunRecord,
    SessionRecord,
    Snapshot,
    TermRecord,
    Version,
    all_filled,
)

R = TypeVar("R")
_CODECS: WeakKeyDictionary[FakeDisk, LogCodec] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class _Damaged:
    """Stands where a record was that fails its checksum."""

    sentence: str


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A change set in the log that is not synced yet, and how to forget it."""

    future: Future[None]
    before: tuple[tuple[Place, Record | _Damaged | None], ...]


class MemoryStore:
    """A `Store` whose commits land when `sync_now` is called. For one thread."""

    def __init__(self, disk: FakeDisk, *, name: str = "store.log") -> None:
        self._disk = disk
        self._name = name
        self._codec = _CODECS.setdefault(disk, LogCodec())
        self._failure: StoreError | None = None
        self._held: Shelves[Record | _Damaged] = Shelves()
        self._waiting: list[_Waiting] = []
        self._reports: list[str] = []
        self._length = 0
        self._synced = 0
        self._recover()

    # Writing

    @property
    def num_waiting(self) -> int:
        """Change sets that the next sync makes durable."""
        return len(self._waiting)

    def submit(self, records: Sequence[Record]) -> Future[None]:
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()
        records = spread(records)
        try:
            self._refuse(records)
            frame = self._codec.encode(records, self._synced)
            self._disk.append(self._name, frame)
        except OSError as error:
            self._fail(error)
            future.set_exception(cast(StoreError, self._failure))
            return future
        except PenstockError as error:
            future.set_exception(error)
            return future
        self._length += len(frame)
        self._waiting.append(_Waiting(future, self._put(records)))
        return future

    def join(self, records: Sequence[Record]) -> Future[None]:
        future = self.submit(records)
        failure = future.exception() if future.done() else None
        if failure is not None:
            raise failure
        return future

    def send(self) -> None:
        """Every change set is in the log from the start."""

    def sync_now(self) -> int:
        """Sync the log and resolve what waited for it, in order; how many change sets that were. A failure goes to their futures."""
        if self._failure is not None or not self._waiting:
            return 0
        try:
            self._disk.sync(self._name)
        except OSError as error:
            self._fail(error)
            return 0
        self._synced = self._length
        done, self._waiting = self._waiting, []
        for waiting in done:
            waiting.future.set_result(None)
        return len(done)

    def reopen(self) -> None:
        self._fail(StoreError(f"{self._name} was reopened before the write was durable"))
        self._recover()
        self._failure = None

    def close(self) -> None:
        self.sync_now()
        self._failure = self._failure or StoreError(f"{self._name} is closed")

    # Look-ups

    def runs(self) -> tuple[RunRecord, ...]:
        return tuple(sorted(self._all(("run",), RunRecord), key=lambda run: run.run))

    def load(self, run: str) -> Snapshot | None:
        record = self._one((("run",), run), RunRecord)
        if record is None:
            return None
        groups = sorted(self._all(("group", run), GroupRecord), key=lambda group: group.order)
        counts = [_count(group) for group in groups]
        growing = [group for group in groups if group.state in (GroupState.OPEN, GroupState.COMPLETE)]
        checkpoints = sorted((kept for kept in self._all(("checkpoint", run), CheckpointRecord) if kept.kept), key=lambda kept: kept.update)
        first_plan = checkpoints[-1].update - 1 if checkpoints else 0
        leases = self._every(("lease", run), LeaseRecord)
        return Snapshot(
            run=record,
            groups=tuple(group for group in groups if group.state not in (GroupState.SPENT, GroupState.DROPPED)),
            members=tuple(member for group in growing for member in self._slots(run, group.id)),
            rollouts=tuple(rollout for group in growing for rollout in self.rollouts(run, group.id)),
            annotations=tuple(found for group in growing for found in self.annotations(run, group.id)),
            sessions=tuple(sorted((each for each in self._all(("session", run), SessionRecord) if not each.ended), key=lambda each: each.session)),
            term=self._one((("term", run), 0), TermRecord),
            plans=tuple(sorted((plan for plan in self._every(("plan", run), Plan) if plan.update >= first_plan), key=lambda plan: plan.update)),
            outcomes=tuple(sorted(self._every(("outcome", run), Outcome), key=lambda outcome: outcome.update)),
            versions=tuple(sorted(self._every(("version", run), Version), key=lambda version: version.version)),
            checkpoints=tuple(checkpoints),
            tallies=tallies(counts, (count for group in groups for count in _count_members(group, self._slots(run, group.id)))),
            last_order=max((group.order for group in groups), default=-1),
            last_ready_order=max((group.ready_order for group in groups if group.ready_order is not None), default=-1),
            cursors=cursors(counts),
            leases=tuple(sorted((each for each in leases if each.state is LeaseState.TAKEN), key=lambda each: each.lease)),
            last_fence=max((each.fence for each in leases), default=0),
            readers=tuple(sorted(self._every(("reader", run), ReaderRecord), key=lambda each: each.reader)),
        )

    def group(self, run: str, group_id: str) -> GroupRecord | None:
        return self._one((("group", run), group_id), GroupRecord)

    def members(self, run: str, group_id: str) -> tuple[MemberRecord, ...]:
        return tuple(all_filled(self._slots(run, group_id), self.rollouts(run, group_id)))

    def rollout(self, run: str, uid: str) -> RolloutRecord | None:
        return self._one((("rollout", run), uid), RolloutRecord)

    def rollouts(self, run: str, group_id: str) -> tuple[RolloutRecord, ...]:
        return tuple(sorted(self._all(("rollout", run, group_id), RolloutRecord), key=by_try))

    def annotations(self, run: str, group_id: str) -> tuple[AnnotationRecord, ...]:
        return tuple(sorted(self._all(("annotation", run, group_id), AnnotationRecord), key=by_subject))

    def plan(self, run: str, update: int) -> Plan | None:
        return self._one((("plan", run), update), Plan)

    def lease(self, run: str, lease: str) -> LeaseRecord | None:
        return self._one((("lease", run), lease), LeaseRecord)

    def payload(self, run: str, uid: str) -> Payload:
        found = self._one((("payload", run), uid), Payload)
        if found is None:
            raise UnknownError(f"run {run!r} has no payload {uid!r}")
        return found

    def bodies(self, run: str, group_ids: Sequence[str]) -> dict[str, list[StoredBody]]:
        stored = {group_id: self._durable(("rollout", run, group_id), RolloutRecord) for group_id in group_ids}
        return {
            group_id: [StoredBody(each.uid, each.digest, self.payload(run, each.uid).body) for each in sorted(found, key=by_try)]
            for group_id, found in stored.items()
        }

    def rollouts_since(self, run: str, stored_at: float) -> Iterator[RolloutRecord]:
        stored = sorted(self._durable(("rollout", run), RolloutRecord), key=lambda rollout: rollout.stored_at, reverse=True)
        yield from (rollout for rollout in stored if rollout.stored_at > stored_at)

    def groups_since(self, run: str, ready_order: int) -> tuple[GroupRecord, ...]:
        ready = [group for group in self._durable(("group", run), GroupRecord) if group.ready_order is not None and group.ready_order > ready_order]
        return tuple(sorted(ready, key=lambda group: group.ready_order or 0))

    def journal(self, run: str, episode: str, first: int = 0) -> tuple[JournalEntry, ...]:
        entries = self._every(("journal", run, episode), JournalEntry)
        return tuple(sorted((entry for entry in entries if entry.index >= first), key=lambda entry: entry.index))

    def episodes(self, run: str) -> tuple[str, ...]:
        return tuple(sorted({shelf[2] for shelf in self._held.names() if shelf[:2] == ("journal", run)}))

    def history(self, run: str, group_id: str) -> History:
        return History.of(group_id, self._all(("plan", run), Plan), self._all(("lease", run), LeaseRecord), self._all(("session", run), SessionRecord))

    def scan_groups(self, run: str) -> Iterator[GroupRecord]:
        yield from sorted(self._durable(("group", run), GroupRecord), key=lambda group: group.order)

    def scan_rollouts(self, run: str) -> Iterator[RolloutRecord]:
        yield from sorted(self._durable(("rollout", run), RolloutRecord), key=lambda rollout: rollout.uid)

    def settled_groups(self, run: str, limit: int) -> tuple[GroupRecord, ...]:
        return tuple(group for group in self.scan_groups(run) if group.archive is None and is_settled(group))[:limit]

    def archive_files(self, run: str) -> tuple[ArchiveFile, ...]:
        return tuple(sorted(self._all(("archive", run), ArchiveFile), key=lambda file: file.number))

    def next_archive_number(self, run: str) -> int:
        return 1 + max((file.number for file in self.archive_files(run)), default=-1)

    def corrupt(self, run: str | None = None) -> tuple[str, ...]:
        # A damaged frame of the log may have held records of any run.
        return tuple(self._reports)

    # Inside

    def _recover(self) -> None:
        """Read the log, keep what is whole or was safe, and make exactly that durable."""
        log = self._disk.read(self._name)
        frames = list(self._codec.decode(log))
        safe = max((frame.synced for frame in frames), default=0)
        self._held = Shelves()
        self._reports = []
        self._length = 0
        for frame in frames:
            if not frame.whole and frame.start >= safe:
                break
            self._replay(frame)
            self._length = frame.stop
        self._rewrite(log[: self._length])
        self._synced = self._length

    def _replay(self, frame: Frame) -> None:
        if not frame.whole:
            self._reports.append(f"bytes {frame.start} to {frame.stop} of {self._name} fail their checksum; they are left where they are")
        for entry in frame.entries:
            if entry.record is None:
                sentence = f"{entry.place[0][0]} {entry.place[1]!r} fails its checksum"
                self._held.put(entry.place, _Damaged(sentence))
            else:
                self._put([entry.record])

    def _rewrite(self, log: bytes) -> None:
        # A copy and not a sync: bytes that survived a failed sync only in memory would pass for safe.
        fresh = f"{self._name}.fresh"
        try:
            self._disk.remove(fresh)
            self._disk.append(fresh, log)
            self._disk.sync(fresh)
            self._disk.rename(fresh, self._name)
        except OSError as error:
            raise _store_error(error, self._name) from error

    def _refuse(self, records: Sequence[Record]) -> None:
        """Raise if the store has failed, or if this change set cannot be kept."""
        if self._failure is not None:
            raise self._failure
        new: dict[Place, Record] = {}
        for record in records:
            place = places(record)[0]
            if isinstance(record, Payload | JournalEntry):
                held = new.get(place) or self._held.get(place)
                if held is not None and not isinstance(held, _Damaged) and held != record:
                    raise ConflictError(f"{place[0][0]} {place[1]!r} of run {record.run!r} is stored with other content")
            new[place] = record
        for record in records:
            if isinstance(record, MemberRecord):
                group: Place = (("group", record.run), record.group_id)
                if group not in new and self._held.get(group) is None:
                    raise InvariantError(f"a member was submitted before its group {record.group_id!r}")

    def _put(self, records: Iterable[Record]) -> tuple[tuple[Place, Record | _Damaged | None], ...]:
        """Make `records` seen; what was there before."""
        before = []
        for record in records:
            for place in places(record):
                before.append((place, self._held.get(place)))
                self._held.put(place, record)
        return tuple(before)

    def _fail(self, error: OSError | StoreError) -> None:
        """Stop taking writes, and forget and fail what is not durable."""
        self._failure = error if isinstance(error, StoreError) else _store_error(error, self._name)
        failed, self._waiting = self._waiting, []
        for waiting in reversed(failed):
            for place, before in reversed(waiting.before):
                if before is None:
                    self._held.drop(place)
                else:
                    self._held.put(place, before)
        for waiting in failed:
            waiting.future.set_exception(self._failure)

    def _slots(self, run: str, group_id: str) -> list[MemberRecord]:
        """As they were kept last, by number."""
        return sorted(self._all(("member", run, group_id), MemberRecord), key=lambda member: member.member)

    def _one(self, place: Place, noun: type[R]) -> R | None:
        found = self._held.get(place)
        if isinstance(found, _Damaged):
            raise CorruptError(found.sentence)
        return cast("R | None", found)

    def _all(self, shelf: Shelf, noun: type[R]) -> list[R]:
        """What is on a shelf and not damaged."""
        return [record for record in self._held.shelf(shelf).values() if isinstance(record, noun)]

    def _every(self, shelf: Shelf, noun: type[R]) -> list[R]:
        """What is on a shelf that nobody may read with a hole in it."""
        return [cast(R, self._one((shelf, key), noun)) for key in self._held.shelf(shelf)]

    def _durable(self, shelf: Shelf, noun: type[R]) -> list[R]:
        known: dict[Any, Any] = dict(self._held.shelf(shelf))
        for waiting in reversed(self._waiting):
            known.update({place[1]: record for place, record in reversed(waiting.before) if place[0] == shelf})
        return [record for record in known.values() if isinstance(record, noun)]


def _count(group: GroupRecord) -> GroupCount:
    dropped = group.state is GroupState.DROPPED
    place = cursor(group.id)
    return GroupCount(
        state=group.state,
        environment=group.environment,
        purpose=group.purpose,
        reason=group.reason if dropped else None,
        source=None if place is None else place[0],
        num_groups=1,
        cursor=None if place is None else (place[1] << 32) + place[2],
        order=group.order,
        ready_order=group.ready_order,
        num_ready=int(group.ready_at is not None),
        ready_tokens=group.tokens if group.ready_at is not None else None,
        lost_longest=group.longest if dropped else None,
        num_filled=None,
    )


def _count_members(group: GroupRecord, slots: Iterable[MemberRecord]) -> Iterator[MemberCount]:
    for slot in slots:
        reason = slot.reason if slot.state is MemberState.FAILED else None
        yield MemberCount(state=slot.state, environment=group.environment, purpose=group.purpose, reason=reason, num_members=1)
    yield from filled_members(group.environment, group.purpose, group.filled)


def _store_error(error: OSError, name: str) -> StoreError:
    full = error.errno == errno.ENOSPC
    return (StoreFullError if full else StoreError)(f"{name} cannot be written: {error.strerror}; reopen the store when it can")
