"""What happens when a rollout or an annotation is written."""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock.errors import ConflictError, FencedError, InvalidError, UnknownError
from penstock.ledger.book import Decision, Ledger, Past
from penstock.ledger.groups import drop, settle
from penstock.ledger.slots import after_failures, hand_back
from penstock.ledger.states import ENDED, move_member
from penstock.types import (
    AnnotationRecord,
    GroupRecord,
    GroupState,
    MemberRecord,
    MemberState,
    Payload,
    Purpose,
    Record,
    RolloutRecord,
    RolloutStatus,
)


@dataclass(frozen=True, slots=True)
class Accepted:
    """Answer to `accept`."""

    rollout: RolloutRecord
    duplicate: bool = False
    """The same rollout was stored before; nothing has changed."""


@dataclass(frozen=True, slots=True)
class Annotated:
    """Answer to `annotate`."""

    annotation: AnnotationRecord
    duplicate: bool = False


def accept(ledger: Ledger, past: Past, rollout: RolloutRecord, payload: Payload, now: float) -> Decision[Accepted]:
    """Store a rollout and let it fill, fail or hand back its slot.

    The same uid with the same bytes is answered as before, whatever has happened since. Refused, with nothing stored: other bytes under a known
    uid, a slot that is filled or was handed to somebody else, a group that has ended, a version that nobody recorded.
    """
    known = ledger.find_rollout(past, rollout.uid)
    if known is not None:
        if known.digest != rollout.digest:
            raise ConflictError(f"rollout {rollout.uid} is stored with digest {known.digest}, not {rollout.digest}")
        return Decision(Accepted(known, duplicate=True))
    group = _open_group(ledger, past, rollout)
    slot = _own_slot(ledger, group, rollout)
    _check_versions(ledger, group, rollout)
    stale = is_stale(ledger, group, rollout)
    rollout = replace(rollout, stale=stale, stored_at=now)
    group = replace(group, longest=max(group.longest, rollout.sampled_tokens))
    stored: tuple[Record, ...] = (payload, rollout)
    if rollout.status is RolloutStatus.INFRA_ERROR:
        slot = replace(hand_back(ledger, slot, rollout.status.value, failed=True), uid=rollout.uid)
        if slot.state is MemberState.FAILED:
            group = after_failures(ledger, group, 1, now)
        return Decision(Accepted(rollout), (*stored, slot, group))
    if rollout.status is RolloutStatus.ENV_ERROR:
        slot = move_member(slot, MemberState.FAILED, session=None, uid=rollout.uid, reason=rollout.status.value)
        return Decision(Accepted(rollout), (*stored, slot, after_failures(ledger, group, 1, now)))
    slot = move_member(slot, MemberState.ACCEPTED, session=None, uid=rollout.uid, reason=None)
    if stale:
        siblings = [record for record in drop(ledger, group, "stale", now) if not _is_slot(record, slot)]
        return Decision(Accepted(rollout), (*stored, slot, *siblings))
    return Decision(Accepted(rollout), (*stored, slot, _with_member(ledger, group, rollout, now)))


def annotate(ledger: Ledger, past: Past, annotation: AnnotationRecord, payload: Payload, now: float) -> Decision[Annotated]:
    """Attach an annotation to a stored rollout; the group becomes ready with the last one it waits for.

    The same key with the same bytes changes nothing. Other bytes, or a group that is already in a plan or has ended, are refused: what was
    planned must not change any more.
    """
    rollout = ledger.find_rollout(past, annotation.rollout_uid)
    if rollout is None:
        raise UnknownError(f"no rollout {annotation.rollout_uid} to annotate")
    key = (annotation.rollout_uid, annotation.name, annotation.step)
    annotation = replace(annotation, group_id=rollout.group_id, stored_at=now)
    stored = ledger.annotations.get(rollout.group_id, {})
    known = stored.get(key) or _past_annotation(ledger, past, annotation)
    if known is not None:
        if known.digest != annotation.digest:
            raise ConflictError(f"annotation {annotation.name} of rollout {annotation.rollout_uid} is stored with other content")
        return Decision(Annotated(known, duplicate=True))
    group = ledger.groups.get(rollout.group_id)
    if group is None or group.state not in (GroupState.OPEN, GroupState.COMPLETE):
        state = "ended" if group is None else group.state
        raise ConflictError(f"group {rollout.group_id} is {state}; annotations come before a group is ready")
    present = [*stored.values(), annotation]
    settled = settle(ledger, group, ledger.rollouts_of.get(group.id, ()), present, now)
    return Decision(Annotated(annotation), (payload, annotation, *(() if settled is group else (settled,))))


def is_stale(ledger: Ledger, group: GroupRecord, rollout: RolloutRecord) -> bool:
    """Whether the rollout holds a token too old to be trained on."""
    if group.purpose is not Purpose.TRAIN or not rollout.status.usable or rollout.oldest_version is None:
        return False
    return ledger.newest_version - rollout.oldest_version > ledger.laws.max_lag


def _open_group(ledger: Ledger, past: Past, rollout: RolloutRecord) -> GroupRecord:
    group = ledger.find_group(past, rollout.group_id)
    if group is None:
        raise UnknownError(f"no group {rollout.group_id}; open it first")
    if rollout.environment not in ("", group.environment) or rollout.problem_id not in ("", group.problem_id):
        raise InvalidError(
            f"group {group.id} is for problem {group.problem_id} of {group.environment}; this is a try at {rollout.problem_id} of {rollout.environment}"
        )
    if group.state in ENDED:
        raise ConflictError(f"group {group.id} is {group.state}{f' ({group.reason})' if group.reason else ''} and takes no more members")
    if rollout.member not in range(group.size):
        raise ConflictError(f"group {group.id} has {group.size} members; there is no member {rollout.member}")
    if group.state is not GroupState.OPEN:
        raise ConflictError(f"group {group.id} is {group.state}; member {rollout.member} is settled")
    return group


def _own_slot(ledger: Ledger, group: GroupRecord, rollout: RolloutRecord) -> MemberRecord:
    slot = ledger.members[group.id][rollout.member]
    if slot.state is not MemberState.PENDING:
        raise ConflictError(f"member {slot.member} of group {group.id} is {slot.state} by rollout {slot.uid}")
    if slot.retry != rollout.retry:
        raise FencedError(f"member {slot.member} of group {group.id} is at try {slot.retry}; try {rollout.retry} is over")
    return slot


def _check_versions(ledger: Ledger, group: GroupRecord, rollout: RolloutRecord) -> None:
    unknown = [version for version in rollout.versions if version not in ledger.versions]
    if unknown:
        raise InvalidError(f"versions: {unknown[0]} was never recorded; the newest is {ledger.newest_version}")
    if rollout.status.usable and group.purpose is Purpose.TRAIN and rollout.oldest_version is None:
        raise InvalidError(f"rollout {rollout.uid} has no sampled token with a version; it cannot be trained on")


def _with_member(ledger: Ledger, group: GroupRecord, rollout: RolloutRecord, now: float) -> GroupRecord:
    """The group after one of its pending members was accepted."""
    versions = [version for version in (group.oldest_version, rollout.oldest_version) if version is not None]
    newest = [version for version in (group.newest_version, rollout.newest_version) if version is not None]
    group = replace(
        group,
        pending=group.pending - 1,
        usable=group.usable + 1,
        oldest_version=min(versions, default=None),
        newest_version=max(newest, default=None),
    )
    rollouts = [*ledger.rollouts_of.get(group.id, ()), rollout]
    return settle(ledger, group, rollouts, ledger.annotations.get(group.id, {}).values(), now)


def _is_slot(record: Record, slot: MemberRecord) -> bool:
    return isinstance(record, MemberRecord) and record.member == slot.member


def _past_annotation(ledger: Ledger, past: Past, annotation: AnnotationRecord) -> AnnotationRecord | None:
    if annotation.group_id in ledger.members:
        return None
    key = (annotation.rollout_uid, annotation.name, annotation.step)
    found = past.annotations(ledger.run.run, annotation.group_id)
    return next((known for known in found if (known.rollout_uid, known.name, known.step) == key), None)
