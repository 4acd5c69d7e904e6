"""What the buffer asks of a store. A store knows records and durability, and nothing of the laws."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import NamedTuple, Protocol

from penstock.types import (
    AnnotationRecord,
    ArchiveFile,
    GroupRecord,
    JournalEntry,
    LeaseRecord,
    MemberRecord,
    Payload,
    Plan,
    Record,
    RolloutRecord,
    RunRecord,
    SessionRecord,
    Snapshot,
)


class StoredBody(NamedTuple):
    """Bytes as they were accepted, and their names."""

    uid: str
    digest: str
    body: bytes


class History(NamedTuple):
    """Who had something to do with a group, in the order in which they began to."""

    plans: tuple[Plan, ...] = ()
    """Undone ones included, until their update is cut again."""
    leases: tuple[LeaseRecord, ...] = ()
    sessions: tuple[SessionRecord, ...] = ()
    """Those that held a slot of it when they ended."""

    @classmethod
    def of(cls, group_id: str, plans: Iterable[Plan], leases: Iterable[LeaseRecord], sessions: Iterable[SessionRecord]) -> History:
        """Those of them that name the group."""
        cut = [plan for plan in plans if any(group.id == group_id for group in plan.groups)]
        leased = [lease for lease in leases if any(group.id == group_id for group in lease.groups)]
        ended = [session for session in sessions if any(slot.group_id == group_id for slot in session.held)]
        return cls(
            plans=tuple(sorted(cut, key=lambda plan: plan.cut_at)),
            leases=tuple(sorted(leased, key=lambda lease: lease.fence)),
            sessions=tuple(sorted(ended, key=lambda session: (session.ended_at or 0.0, session.session))),
        )


class Store(Protocol):
    """Keeps records of any number of runs.

    `submit` is ordered: what was submitted earlier is durable no later. Look-ups see everything that was submitted, durable or not, so that the
    caller's next decision stands on its last one; only a resolved future may be told to anybody else.

    A damaged record is never served. A look-up by its key raises `CorruptError`; a wider one leaves it out, except that an episode's journal and, in
    `load`, a run's term, plans, outcomes, versions and taken leases raise, since nobody may go on with a hole there. Writing the record again mends it.
    """

    def submit(self, records: Sequence[Record]) -> Future[None]:
        """Write all of `records`, atomically. The future resolves when they are on disk, or fails with `StoreError`.

        After such a failure every later submit fails too until `reopen`; what was acknowledged before stays readable. Other failures concern this
        change set alone: `ConflictError` for a payload or journal entry that is stored with other content (the same content again is
        no change), `InvariantError` for a member whose group is neither stored nor among `records` and for a field that the store would not give
        back as it was (a numpy integer), `InvalidError` for a record that cannot be encoded, `LimitError` when too much waits.
        Nothing is raised here: all of them come through the future, which cannot be cancelled.
        An empty change set is a durable write too, to find out whether one is possible.
        """

    def join(self, records: Sequence[Record]) -> Future[None]:
        """As `submit`, in one change set with whatever else has joined since the last `send`: they become durable together or not at all.

        Once so much has joined that it is worth a commit, the store sends it of its own accord; the records of one call stay together.
        What can be refused at once is raised here, and then nothing of `records` has joined.
        """

    def send(self) -> None:
        """Let what has joined be written. So does `submit`, since what was submitted earlier is durable no later."""

    def reopen(self) -> None:
        """Forget everything that is not durable and start again from disk. Raises `StoreError` if the disk still refuses."""

    def runs(self) -> tuple[RunRecord, ...]:
        """All runs, by name."""

    def load(self, run: str) -> Snapshot | None:
        """What the ledger needs to go on with `run`; None if there is no such run."""

    def group(self, run: str, group_id: str) -> GroupRecord | None: ...

    def members(self, run: str, group_id: str) -> tuple[MemberRecord, ...]:
        """Slots of a group, by number."""

    def rollout(self, run: str, uid: str) -> RolloutRecord | None: ...

    def rollouts(self, run: str, group_id: str) -> tuple[RolloutRecord, ...]:
        """Every stored try of a group, by (member, retry)."""

    def annotations(self, run: str, group_id: str) -> tuple[AnnotationRecord, ...]:
        """By (rollout, name, step)."""

    def plan(self, run: str, update: int) -> Plan | None: ...

    def lease(self, run: str, lease: str) -> LeaseRecord | None: ...

    def payload(self, run: str, uid: str) -> Payload:
        """The bytes of a rollout or annotation, here or in the archive.

        Raises `UnknownError`, `CorruptError` if they fail their checksum, `RetiredError` if retention gave up their archive file.
        """

    def bodies(self, run: str, group_ids: Sequence[str]) -> dict[str, list[StoredBody]]:
        """Bytes of every stored rollout of some groups, by group and in the order they were stored. Durable ones only, without damaged ones."""

    def rollouts_since(self, run: str, stored_at: float) -> Iterator[RolloutRecord]:
        """The rollouts that were stored later than `stored_at`, the newest first. Durable ones only."""

    def groups_since(self, run: str, ready_order: int) -> tuple[GroupRecord, ...]:
        """Groups that became ready after the one with this `ready_order`, in that order, whatever became of them. Durable ones only."""

    def journal(self, run: str, episode: str, first: int = 0) -> tuple[JournalEntry, ...]:
        """Entries of an episode from the index `first` on, by index."""

    def episodes(self, run: str) -> tuple[str, ...]:
        """Episodes that have a journal, by name. Durable ones only."""

    def history(self, run: str, group_id: str) -> History:
        """Plans, leases and ended sessions that name a group, over or not. Looks through all of them: not for an event loop."""

    def scan_groups(self, run: str) -> Iterator[GroupRecord]:
        """All groups of a run, by `order`, for tools that reconcile. Durable ones only."""

    def scan_rollouts(self, run: str) -> Iterator[RolloutRecord]:
        """All stored rollouts of a run, by uid. Durable ones only."""

    def settled_groups(self, run: str, limit: int) -> tuple[GroupRecord, ...]:
        """The first groups, by `order`, that nothing will happen to any more and whose bytes are still here. Durable ones only."""

    def archive_files(self, run: str) -> tuple[ArchiveFile, ...]:
        """Files that bytes have moved to, by number, retired ones included."""

    def next_archive_number(self, run: str) -> int:
        """One more than that of any file, also of those whose records are damaged."""

    def corrupt(self, run: str | None = None) -> tuple[str, ...]:
        """One sentence for each record, of one run or of any, that was found to fail its checksum, and where it was set aside."""

    def close(self) -> None:
        """Make durable what was submitted, then let go of the files."""
