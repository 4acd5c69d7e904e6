"""A group as a store holds it, with its bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import CorruptError
from penstock.ledger.groups import content_digest
from penstock.types import AnnotationRecord, GroupRecord, MemberState, Payload, RolloutRecord

if TYPE_CHECKING:  # clients read such groups, too, and have no store
    from penstock.buffer.store.protocol import Store


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A group as it is kept: usable members by slot, annotations, and the bytes of both."""

    group: GroupRecord
    rollouts: tuple[tuple[RolloutRecord, Payload], ...]
    annotations: tuple[tuple[AnnotationRecord, Payload], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenGroup:
    """A group of a lease, as far as it can be had: the fields of a `StoredGroup`, or what is wrong with it."""

    id: str
    group: GroupRecord | None = None
    """None if it is the record that is damaged."""
    rollouts: tuple[tuple[RolloutRecord, Payload], ...] = ()
    annotations: tuple[tuple[AnnotationRecord, Payload], ...] = ()
    damaged: str | None = None
    """Why its content cannot be had; then there is none."""

    @property
    def stored(self) -> StoredGroup:
        """The group as it is kept. Raises `CorruptError` if it is damaged."""
        if self.group is None or self.damaged is not None:
            raise CorruptError(self.damaged or f"group {self.id} has no record")
        return StoredGroup(self.group, self.rollouts, self.annotations)


def opened(store: Store, group: GroupRecord, digest: str | None) -> StoredGroup:
    """A group with its bytes. Raises `CorruptError` if its content is not what `digest` (from a plan) says. On any thread: they may lie in the archive."""
    run = group.run
    accepted = {member.uid for member in store.members(run, group.id) if member.state is MemberState.ACCEPTED}
    rollouts = tuple(rollout for rollout in store.rollouts(run, group.id) if rollout.uid in accepted and rollout.status.usable)
    annotations = tuple(store.annotations(run, group.id))
    if digest is not None and content_digest(rollouts, annotations) != digest:
        raise CorruptError(f"group {group.id} no longer holds what was planned (digest {digest})")
    return StoredGroup(
        group=group,
        rollouts=tuple((rollout, store.payload(run, rollout.uid)) for rollout in rollouts),
        annotations=tuple((known, store.payload(run, known.uid)) for known in annotations),
    )
