"""What happens when an annotation is written."""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock.errors import ConflictError, UnknownError
from penstock.ledger.book import Decision, Ledger, Past
from penstock.ledger.groups import settle
from penstock.types import AnnotationRecord, GroupState, Payload


@dataclass(frozen=True, slots=True)
class Annotated:
    """Answer to `annotate`."""

    annotation: AnnotationRecord
    duplicate: bool = False


def annotate(ledger: Ledger, past: Past, annotation: AnnotationRecord, payload: Payload, now: float) -> Decision[Annotated]:
    """Attach an annotation to a stored rollout; the group becomes ready with the last one it waits for.

    The same key with the same bytes changes nothing. Other bytes, or a group that is already in a plan or has ended, are refused: what was
    planned must not change any more. So is an annotation of an item: its group waits for items alone.
    """
    rollout = ledger.find_rollout(past, annotation.rollout_uid)
    if rollout is None:
        raise UnknownError(f"no rollout {annotation.rollout_uid} to annotate")
    if rollout.form == "item":
        raise ConflictError(f"{annotation.rollout_uid} is an item of group {rollout.group_id}; only rollouts have annotations")
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


def _past_annotation(ledger: Ledger, past: Past, annotation: AnnotationRecord) -> AnnotationRecord | None:
    if annotation.group_id in ledger.members:
        return None
    key = (annotation.rollout_uid, annotation.name, annotation.step)
    found = past.annotations(ledger.run.run, annotation.group_id)
    return next((known for known in found if (known.rollout_uid, known.name, known.step) == key), None)
