"""What happens when rollouts are written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.errors import ConflictError, FencedError, InputError, InvalidError, UnknownError
from penstock.ledger.book import Decision, Ledger, Past
from penstock.ledger.groups import dropped, settle
from penstock.ledger.slots import hand_back
from penstock.ledger.states import ENDED, move_member
from penstock.types import GroupRecord, GroupState, MemberRecord, MemberState, Payload, Purpose, Record, RolloutRecord, RolloutStatus, filled
from penstock.types.frozen import changed

# Asked for with every rollout, and an enum takes its time to name a member.
_OPEN, _PENDING, _TRAIN = GroupState.OPEN, MemberState.PENDING, Purpose.TRAIN


class Accepted(NamedTuple):
    """Answer to `accept`."""

    rollout: RolloutRecord
    duplicate: bool = False
    """The same rollout was stored before; nothing has changed."""


def accept(ledger: Ledger, past: Past, rollout: RolloutRecord, payload: Payload, now: float) -> Decision[Accepted]:
    """Store a rollout and let it fill, fail or hand back its slot.

    The same uid with the same bytes is answered as before, whatever has happened since. Refused, with nothing stored: other bytes under a known
    uid, a slot that is filled or was handed to somebody else, a group that has ended, a version that nobody recorded.
    """
    decision = accept_all(ledger, past, [(rollout, payload)], now)
    answer = decision.reply[0]
    if isinstance(answer, InputError):
        raise answer
    return Decision(answer, decision.records)


def accept_all(ledger: Ledger, past: Past, writes: Sequence[tuple[RolloutRecord, Payload]], now: float) -> Decision[tuple[Accepted | InputError, ...]]:
    """As `accept` of one after the other, decided at once: what a refused one would raise stands in its place, and a group is written once."""
    batch = _Batch(ledger, past, now)
    answers: list[Accepted | InputError] = []
    for rollout, payload in writes:
        try:
            answers.append(batch.accept(rollout, payload))
        except InputError as error:
            answers.append(error)
    return Decision(tuple(answers), batch.records())


class _Batch:
    """Writes that are decided together. The ledger is as it was before the first; what has changed since is here."""

    def __init__(self, ledger: Ledger, past: Past, now: float) -> None:
        self._ledger = ledger
        self._past = past
        self._now = now
        self._records: list[Record] = []
        self._groups: dict[str, _Filling] = {}
        self._rollouts: dict[str, RolloutRecord] = {}
        self._last_ready_order = ledger.last_ready_order

    def accept(self, rollout: RolloutRecord, payload: Payload) -> Accepted:
        """Decide one more. Raises `InputError` if it is refused; then nothing has changed."""
        known = self._rollouts.get(rollout.uid) or self._ledger.find_rollout(self._past, rollout.uid)
        if known is not None:
            if known.digest != rollout.digest:
                raise ConflictError(f"rollout {rollout.uid} is stored with digest {known.digest}, not {rollout.digest}")
            return Accepted(known, duplicate=True)
        filling = self._filling(rollout.group_id)
        group = filling.group
        _check_group(group, rollout)
        slot = filling.slots[rollout.member]
        _check_slot(slot, rollout)
        _check_versions(self._ledger, group, rollout)
        stale = is_stale(self._ledger, group, rollout)
        if stale or rollout.stored_at != self._now:
            rollout = changed(rollout, stale=stale, stored_at=self._now)
        self._rollouts[rollout.uid] = rollout
        self._records += (payload, rollout)
        filling.longest = max(filling.longest, rollout.sampled_tokens)
        if not rollout.status.usable:
            self._fail(filling, slot, rollout)
        else:
            filling.fill(slot, rollout)
            if stale:
                self._drop(filling)
            else:
                filling.take(rollout)
        if not filling.pending:
            self._settle(filling)
        return Accepted(rollout)

    def records(self) -> tuple[Record, ...]:
        """What makes it all true. Groups that still wait for members come last, each once."""
        waiting = (filling.record() for filling in self._groups.values() if filling.changed and filling.group.state is GroupState.OPEN)
        return (*self._records, *waiting)

    def _filling(self, group_id: str) -> _Filling:
        found = self._groups.get(group_id)
        if found is None:
            group = self._ledger.find_group(self._past, group_id)
            if group is None:
                raise UnknownError(f"no group {group_id}; open it first")
            found = self._groups[group_id] = _Filling(group, self._ledger.members.get(group_id, ()))
        return found

    def _fail(self, filling: _Filling, slot: MemberRecord, rollout: RolloutRecord) -> None:
        if rollout.status is RolloutStatus.INFRA_ERROR:
            slot = changed(hand_back(self._ledger, slot, rollout.status.value, failed=True), uid=rollout.uid)
        else:
            slot = move_member(slot, MemberState.FAILED, session=None, uid=rollout.uid, reason=rollout.status.value)
        filling.pending -= slot.state is MemberState.FAILED
        filling.set(slot)
        self._records.append(slot)

    def _drop(self, filling: _Filling) -> None:
        records = dropped(filling.record(), filling.slots, "stale", self._now)
        filling.group = records[-1]
        self._records += records

    def _settle(self, filling: _Filling) -> None:
        """The group has all it will have."""
        group_id = filling.group.id
        rollouts = [*self._ledger.rollouts_of.get(group_id, ()), *filling.taken]
        annotations = self._ledger.annotations.get(group_id, {}).values()
        filling.group = settle(self._ledger, filling.record(), rollouts, annotations, self._now, ready_order=self._last_ready_order + 1)
        self._last_ready_order += filling.group.state is GroupState.READY
        self._records.append(filling.group)


class _Filling:
    """A group while members come in: what a record of it would say, without one for each of them."""

    __slots__ = ("changed", "filled", "group", "longest", "newest_version", "oldest_version", "pending", "slots", "taken", "usable")

    def __init__(self, group: GroupRecord, slots: Sequence[MemberRecord]) -> None:
        self.group = group
        self.slots = list(slots)
        self.taken: list[RolloutRecord] = []
        self.changed = False
        self.longest = group.longest
        self.pending = group.pending
        self.filled = group.filled
        self.usable = group.usable
        self.oldest_version = group.oldest_version
        self.newest_version = group.newest_version

    def set(self, slot: MemberRecord) -> None:
        """A slot has changed."""
        self.slots[slot.member] = slot
        self.changed = True

    def fill(self, slot: MemberRecord, rollout: RolloutRecord) -> None:
        """A slot has the rollout that it waited for."""
        self.set(filled(slot, rollout))
        self.filled += 1

    def take(self, rollout: RolloutRecord) -> None:
        """One of the pending members was accepted, and may be trained on."""
        self.taken.append(rollout)
        self.pending -= 1
        self.usable += 1
        if rollout.oldest_version is not None and (self.oldest_version is None or rollout.oldest_version < self.oldest_version):
            self.oldest_version = rollout.oldest_version
        if rollout.newest_version is not None and (self.newest_version is None or rollout.newest_version > self.newest_version):
            self.newest_version = rollout.newest_version

    def record(self) -> GroupRecord:
        """The group as it is now."""
        return changed(
            self.group,
            longest=self.longest,
            pending=self.pending,
            filled=self.filled,
            usable=self.usable,
            oldest_version=self.oldest_version,
            newest_version=self.newest_version,
        )


def is_stale(ledger: Ledger, group: GroupRecord, rollout: RolloutRecord) -> bool:
    """Whether the rollout holds a token too old to be trained on."""
    if group.purpose is not _TRAIN or not rollout.status.usable or rollout.oldest_version is None:
        return False
    return ledger.newest_version - rollout.oldest_version > ledger.laws.max_lag


def _check_group(group: GroupRecord, rollout: RolloutRecord) -> None:
    if rollout.environment not in ("", group.environment) or rollout.problem_id not in ("", group.problem_id):
        raise InvalidError(
            f"group {group.id} is for problem {group.problem_id} of {group.environment}; this is a try at {rollout.problem_id} of {rollout.environment}"
        )
    if group.state is _OPEN and group.arrival is None and 0 <= rollout.member < group.size:
        return
    if group.state in ENDED:
        raise ConflictError(f"group {group.id} is {group.state}{f' ({group.reason})' if group.reason else ''} and takes no more members")
    if not 0 <= rollout.member < group.size:
        raise ConflictError(f"group {group.id} has {group.size} members; there is no member {rollout.member}")
    if group.arrival is not None:
        raise ConflictError(f"group {group.id} takes items as they arrive, not rollouts")
    raise ConflictError(f"group {group.id} is {group.state}; member {rollout.member} is settled")


def _check_slot(slot: MemberRecord, rollout: RolloutRecord) -> None:
    if slot.state is not _PENDING:
        raise ConflictError(f"member {slot.member} of group {slot.group_id} is {slot.state} by rollout {slot.uid}")
    if slot.retry != rollout.retry:
        raise FencedError(f"member {slot.member} of group {slot.group_id} is at try {slot.retry}; try {rollout.retry} is over")


def _check_versions(ledger: Ledger, group: GroupRecord, rollout: RolloutRecord) -> None:
    for version in rollout.versions:
        if version not in ledger.versions:
            raise InvalidError(f"versions: {version} was never recorded; the newest is {ledger.newest_version}")
    if rollout.oldest_version is None and rollout.status.usable and group.purpose is Purpose.TRAIN:
        raise InvalidError(f"rollout {rollout.uid} has no sampled token with a version; it cannot be trained on")
