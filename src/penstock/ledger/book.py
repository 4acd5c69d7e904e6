"""The ledger of one run as a value in memory: what has not ended, indexed for the rules, and exact counts of everything else."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from penstock.errors import InvariantError
from penstock.ledger.counts import Counts
from penstock.ledger.pools import Pools
from penstock.ledger.queues import ReadyKey, ReadyQueue
from penstock.ledger.states import ENDED
from penstock.ledger.trays import Trays
from penstock.types import (
    AnnotationRecord,
    ArrivedItem,
    CheckpointRecord,
    GroupRecord,
    GroupState,
    Laws,
    LeaseRecord,
    LeaseState,
    MemberRecord,
    MemberState,
    Outcome,
    Plan,
    Purpose,
    ReaderRecord,
    Record,
    RolloutRecord,
    RunRecord,
    SessionRecord,
    Snapshot,
    SpentGroups,
    TermRecord,
    Version,
    all_filled,
    filled,
)
from penstock.types.frozen import changed

Reply = TypeVar("Reply", covariant=True)

# Asked for with every rollout, and an enum takes its time to name a member.
_PENDING, _FAILED = MemberState.PENDING, MemberState.FAILED


class Decision(NamedTuple, Generic[Reply]):
    """What to answer, and the records that make it true."""

    reply: Reply
    records: tuple[Record, ...] = ()


class Past(Protocol):
    """Look-ups of what has left the ledger's memory. A store is one; so is a dict in a test."""

    def group(self, run: str, group_id: str) -> GroupRecord | None: ...

    def rollout(self, run: str, uid: str) -> RolloutRecord | None: ...

    def annotations(self, run: str, group_id: str) -> tuple[AnnotationRecord, ...]: ...

    def plan(self, run: str, update: int) -> Plan | None: ...

    def lease(self, run: str, lease: str) -> LeaseRecord | None: ...


class Ledger:
    """State of one run. Rules read it; only `apply` changes it.

    Members, rollouts and annotations are held while their group is open or complete; group records until they have ended. The rest is in the
    store (`Past`), so memory grows with what is under way and not with the length of the run.
    """

    def __init__(self, run: RunRecord) -> None:
        self.run = run
        self.groups: dict[str, GroupRecord] = {}
        self.members: dict[str, list[MemberRecord]] = {}
        self.rollouts: dict[str, RolloutRecord] = {}
        self.rollouts_of: dict[str, list[RolloutRecord]] = {}
        self.annotations: dict[str, dict[tuple[str, str, int | None], AnnotationRecord]] = {}
        self.sessions: dict[str, SessionRecord] = {}
        self.claims: dict[str, dict[tuple[str, int], None]] = {}
        """Slots by the session that holds them."""
        self.free: dict[str, OrderedDict[str, None]] = {}
        """By environment: groups with a slot that nobody has claimed, in the order they are handed out."""
        self.torn: dict[str, None] = {}
        """Groups that were found to be damaged, and cannot become what they were to be."""
        self.complete: dict[str, None] = {}
        """Groups that wait for annotations, in the order they began to."""
        self.ready: dict[str, ReadyQueue] = {}
        """By environment: groups that may be cut or leased, sorted."""
        self.leases: dict[str, LeaseRecord] = {}
        """Those that are taken."""
        self.last_fence = 0
        self.readers: dict[str, ReaderRecord] = {}
        self.trays = Trays()
        """What has arrived of groups whose members are issued as they arrive."""
        self.pools = Pools()
        self.term: TermRecord | None = None
        self.plans: dict[int, Plan] = {}
        self.outcomes: dict[int, Outcome] = {}
        self.versions: dict[int, Version] = {}
        self.newest_version = -1
        """Number of the newest recorded weights; -1 before the run has any."""
        self.checkpoints: dict[int, CheckpointRecord] = {}
        self.counts: dict[tuple[str, Purpose], Counts] = {}
        self.cursors: dict[str, tuple[int, int]] = {}
        self.last_order = -1
        self.last_ready_order = -1

    @classmethod
    def load(cls, snapshot: Snapshot) -> Ledger:
        """The ledger as the store remembers it."""
        ledger = cls(snapshot.run)
        for key, tally in snapshot.tallies.items():
            ledger.counts_of(*key).start_from(tally)
        for group in snapshot.groups:
            ledger._index_group(group)
        ledger._index_slots(snapshot)
        for rollout in snapshot.rollouts:
            ledger._index_rollout(rollout)
        ledger.apply(snapshot.annotations)
        ledger.apply(snapshot.sessions)
        ledger.apply((snapshot.term,) if snapshot.term else ())
        ledger.apply((*snapshot.plans, *snapshot.outcomes, *snapshot.versions, *snapshot.checkpoints))
        ledger.apply((*snapshot.leases, *snapshot.readers))
        ledger.torn.update(dict.fromkeys(group.id for group in snapshot.groups if ledger.is_orphan(group)))
        ledger.last_order, ledger.last_ready_order, ledger.last_fence = snapshot.last_order, snapshot.last_ready_order, snapshot.last_fence
        ledger.cursors = dict(snapshot.cursors)
        return ledger

    def is_orphan(self, group: GroupRecord) -> bool:
        """Whether a group is bound to a lease that is not there: only damage takes one away before its groups are free."""
        return group.state is GroupState.BOUND and group.lease is not None and group.lease not in self.leases

    def _index_slots(self, snapshot: Snapshot) -> None:
        # That of an item was settled as it arrived: there is no slot to keep.
        kept = {(slot.group_id, slot.member): slot for slot in snapshot.members if not slot.environment}
        growing = [group for group in snapshot.groups if group.state in (GroupState.OPEN, GroupState.COMPLETE) and group.arrival is None]
        # One whose record is damaged is as it was issued.
        issued = (MemberRecord(run=group.run, group_id=group.id, member=number) for group in growing for number in range(group.size))
        for slot in all_filled([kept.get((slot.group_id, slot.member), slot) for slot in issued], snapshot.rollouts):
            self._index_member(slot)
        for group in growing:
            self._find_torn(group)

    def _find_torn(self, group: GroupRecord) -> None:
        """Let a group count what is left of it, if the record of a slot or rollout was damaged so that the store has left it out."""
        states = Counter(slot.state for slot in self.members[group.id])
        if (states[MemberState.ACCEPTED], states[_PENDING]) == (group.usable, group.pending):
            return
        lost = group.usable - states[MemberState.ACCEPTED]
        self.torn[group.id] = None
        self.groups[group.id] = changed(group, usable=states[MemberState.ACCEPTED], pending=states[_PENDING], filled=max(0, group.filled - lost))
        counted = self.counts_of(group.environment, group.purpose).members
        counted[MemberState.ACCEPTED, None] -= lost
        counted[_PENDING, None] += states[_PENDING] - group.pending

    @property
    def laws(self) -> Laws:
        """The rules of the run."""
        return self.run.laws

    @property
    def next_update(self) -> int:
        """The first update without an outcome. Outcomes have no gaps."""
        return len(self.outcomes)

    @property
    def newest_checkpoint(self) -> int:
        """Where resume starts; 0 if nothing was kept."""
        return max(self.checkpoints, default=0)

    def counts_of(self, environment: str, purpose: Purpose) -> Counts:
        """Counts of an environment and purpose, made if new."""
        found = self.counts.get((environment, purpose))
        if found is None:
            found = self.counts[environment, purpose] = Counts()
        return found

    def find_group(self, past: Past, group_id: str) -> GroupRecord | None:
        """The group, ended or not."""
        return self.groups.get(group_id) or past.group(self.run.run, group_id)

    def find_rollout(self, past: Past, uid: str) -> RolloutRecord | None:
        """The stored rollout, whatever became of its group."""
        return self.rollouts.get(uid) or past.rollout(self.run.run, uid)

    def apply(self, records: Iterable[Record]) -> None:
        """Take note of `records`, in order. Those that are not in the table, as bytes and journals, are the store's business alone."""
        for record in records:
            take_note = _NOTED.get(type(record))
            if take_note is not None:
                take_note(self, record)

    def _apply_item(self, item: ArrivedItem) -> None:
        state = MemberState.ACCEPTED if item.failure is None else MemberState.FAILED
        # Issued and settled at once, so there is no slot to keep.
        self.counts_of(item.environment, Purpose.TRAIN).members[state, item.failure] += 1
        self.trays.fill(item)
        if item.failure is None and item.group_id in self.groups:
            self.pools.accept_item(item)

    def _apply_group(self, group: GroupRecord) -> None:
        counts = self.counts_of(group.environment, group.purpose)
        old = self.groups.get(group.id)
        if old is None:
            if group.order <= self.last_order:
                raise InvariantError(f"group {group.id} has ended and was to become {group.state}")
            self.last_order = group.order
            self._advance_cursor(group.id)
        else:
            self._unindex_group(old)
            counts.groups[old.state, old.reason] -= 1
        counts.groups[group.state, group.reason] += 1
        if group.state is GroupState.DROPPED:
            counts.dropped_longest[str(group.reason)] += group.longest
        if group.ready_order is not None and (old is None or old.ready_order is None):
            self.last_ready_order = max(self.last_ready_order, group.ready_order)
            counts.ready_groups += 1
            counts.ready_tokens += group.tokens
        self._index_group(group)

    def _apply_spent(self, spent: SpentGroups) -> None:
        """As if the record of each group came by itself; what they have in common is done once."""
        by_environment: dict[str, list[GroupRecord]] = {}
        for group in spent.groups:
            by_environment.setdefault(group.environment, []).append(group)
            del self.groups[group.id]
        for environment, groups in by_environment.items():
            counts = self.counts_of(environment, Purpose.TRAIN)
            counts.groups[GroupState.READY, None] -= len(groups)
            counts.groups[GroupState.SPENT, None] += len(groups)
            credits = [group.credit for group in groups if group.credit]
            counts.held_tokens -= sum(credits)
            counts.held_groups -= len(credits)
            self.pools.take_all(environment, groups)
            self.trays.take_ready(groups)
            self.ready[environment].remove_all([group.id for group in groups])

    def _unindex_group(self, old: GroupRecord) -> None:
        if old.arrival is not None:
            self.trays.take(old, old.arrival)
        counts = self.counts_of(old.environment, old.purpose)
        counts.held_tokens -= old.credit
        counts.held_groups -= old.credit > 0
        counts.bound_groups -= old.credit > 0 and old.state is GroupState.BOUND
        self.pools.take(old)
        if old.state is GroupState.READY and old.purpose is Purpose.TRAIN:
            self.ready[old.environment].remove(ready_key(old))

    def _index_group(self, group: GroupRecord) -> None:
        if group.arrival is not None:
            self.trays.put(group, group.arrival)
        counts = self.counts_of(group.environment, group.purpose)
        counts.held_tokens += group.credit
        counts.held_groups += group.credit > 0
        counts.bound_groups += group.credit > 0 and group.state is GroupState.BOUND
        if group.state is GroupState.COMPLETE:
            self.complete[group.id] = None
        else:
            self.complete.pop(group.id, None)
        self.pools.put(group)
        if group.state in (GroupState.OPEN, GroupState.COMPLETE):
            self.groups[group.id] = group
            return
        self._forget_members(group)
        if group.state in ENDED or group.purpose is not Purpose.TRAIN:
            self.groups.pop(group.id, None)
            return
        self.groups[group.id] = group
        if group.state is GroupState.READY:
            self.ready.setdefault(group.environment, ReadyQueue()).add(ready_key(group))

    def _forget_members(self, group: GroupRecord) -> None:
        self.members.pop(group.id, None)
        self.annotations.pop(group.id, None)
        if group.environment in self.free:
            self.free[group.environment].pop(group.id, None)
        for rollout in self.rollouts_of.pop(group.id, ()):
            del self.rollouts[rollout.uid]

    def _apply_member(self, member: MemberRecord) -> None:
        group = self.groups[member.group_id]
        counts = self.counts_of(group.environment, group.purpose)
        slots = self.members.get(member.group_id, ())
        if member.member < len(slots):
            old = slots[member.member]
            counts.members[old.state, _failure(old)] -= 1
            if old.session is not None:
                self.claims[old.session].pop((old.group_id, old.member), None)
        counts.members[member.state, _failure(member)] += 1
        self._index_member(member)

    def _index_member(self, member: MemberRecord) -> None:
        slots = self.members.setdefault(member.group_id, [])
        if member.member == len(slots):
            slots.append(member)
        else:
            slots[member.member] = member
        environment = self.groups[member.group_id].environment
        free = self.free.get(environment)
        if free is None:
            free = self.free[environment] = OrderedDict()
        if is_free(member):
            free[member.group_id] = None
            if member.retry:
                # Its siblings are waiting: what was handed out before comes before what never was.
                free.move_to_end(member.group_id, last=False)
            return
        if member.session is not None and member.state is _PENDING:
            self.claims.setdefault(member.session, {})[member.group_id, member.member] = None
        # Slots are handed out from the first on, so a free one is most likely the last.
        if member.group_id in free and not any(map(is_free, reversed(slots))):
            del free[member.group_id]

    def _index_rollout(self, rollout: RolloutRecord) -> None:
        if rollout.form == "item":
            self.trays.fill(rollout)
        elif rollout.group_id in self.groups:
            self.rollouts[rollout.uid] = rollout
            self.rollouts_of.setdefault(rollout.group_id, []).append(rollout)

    def _apply_rollout(self, rollout: RolloutRecord) -> None:
        self._index_rollout(rollout)
        group = self.groups.get(rollout.group_id)
        if group is None:
            return
        self.pools.accept(group, rollout)
        if rollout.status.usable:
            self._apply_member(filled(self.members[group.id][rollout.member], rollout))

    def _apply_annotation(self, annotation: AnnotationRecord) -> None:
        self.annotations.setdefault(annotation.group_id, {})[annotation.rollout_uid, annotation.name, annotation.step] = annotation

    def _apply_session(self, session: SessionRecord) -> None:
        if session.ended:
            self.sessions.pop(session.session, None)
            self.claims.pop(session.session, None)
        else:
            self.sessions[session.session] = session
            self.claims.setdefault(session.session, {})

    def _apply_lease(self, lease: LeaseRecord) -> None:
        if lease.fence > self.last_fence:
            self.last_fence = lease.fence
            self.pools.batch_made()
        if lease.state is LeaseState.TAKEN:
            self.leases[lease.lease] = lease
        else:
            self.leases.pop(lease.lease, None)

    def _apply_reader(self, reader: ReaderRecord) -> None:
        self.readers[reader.reader] = reader

    def _apply_run(self, run: RunRecord) -> None:
        self.run = run

    def _apply_term(self, term: TermRecord) -> None:
        self.term = term

    def _apply_plan(self, plan: Plan) -> None:
        self._keep_or_void(self.plans, plan)
        self.pools.batch_made()

    def _apply_outcome(self, outcome: Outcome) -> None:
        self._keep_or_void(self.outcomes, outcome)

    def _apply_version(self, version: Version) -> None:
        self.versions[version.version] = version
        self.newest_version = max(self.newest_version, version.version)

    def _apply_checkpoint(self, checkpoint: CheckpointRecord) -> None:
        if checkpoint.kept:
            self.checkpoints[checkpoint.update] = checkpoint
            for update in [update for update in self.plans if update < self.newest_checkpoint - 1]:
                del self.plans[update]
        else:
            self.checkpoints.pop(checkpoint.update, None)

    def _keep_or_void(self, known: dict[int, Plan] | dict[int, Outcome], record: Plan | Outcome) -> None:
        if record.void:
            known.pop(record.update, None)
        else:
            known[record.update] = record  # type: ignore[assignment]

    def _advance_cursor(self, group_id: str) -> None:
        source, place = split_group_id(group_id)
        if place is not None:
            self.cursors[source] = max(self.cursors.get(source, (0, -1)), place)


# A table, because a dozen questions about the type of each of thousands of records take longer than what is done with them.
_NOTED: dict[type, Callable[[Ledger, Any], None]] = {
    AnnotationRecord: Ledger._apply_annotation,
    ArrivedItem: Ledger._apply_item,
    CheckpointRecord: Ledger._apply_checkpoint,
    GroupRecord: Ledger._apply_group,
    LeaseRecord: Ledger._apply_lease,
    MemberRecord: Ledger._apply_member,
    Outcome: Ledger._apply_outcome,
    Plan: Ledger._apply_plan,
    ReaderRecord: Ledger._apply_reader,
    RolloutRecord: Ledger._apply_rollout,
    RunRecord: Ledger._apply_run,
    SessionRecord: Ledger._apply_session,
    SpentGroups: Ledger._apply_spent,
    TermRecord: Ledger._apply_term,
    Version: Ledger._apply_version,
}


def is_free(member: MemberRecord) -> bool:
    """Whether the slot may be claimed."""
    return member.state is _PENDING and member.session is None


def ready_key(group: GroupRecord) -> ReadyKey:
    """Where a ready group stands: by version, then by age."""
    version = -1 if group.oldest_version is None else group.oldest_version
    return (version, group.ready_order or 0, group.id)


def split_group_id(group_id: str) -> tuple[str, tuple[int, int] | None]:
    """`source/pass/index` as (source, (pass, index)); (id, None) for an id of another form.

    >>> split_group_id("sort/0/17")
    ('sort', (0, 17))
    >>> split_group_id("by hand")
    ('by hand', None)
    """
    parts = group_id.rsplit("/", 2)
    if len(parts) == 3 and all(part.isdecimal() and part.isascii() and len(part) <= 9 for part in parts[1:]):
        return parts[0], (int(parts[1]), int(parts[2]))
    return group_id, None


def _failure(member: MemberRecord) -> str | None:
    """The reason a member counts under: only failed ones have one."""
    return member.reason if member.state is _FAILED else None
