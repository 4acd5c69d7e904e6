"""The whole story of a group, a member or a rollout: what happened to it, when, and what became of it. For `where`.

`telling.tell` looks it up, in a live buffer or in a store that is only read; `sentences.events` puts it into words, in order of time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.types import AnnotationRecord, ArchiveFile, GroupRecord, HeldSlot, LeaseRecord, MemberRecord, Outcome, RolloutRecord, Version

MEMBER_MARK = "#"
"""`<group>#<member>` names a member. No id has the character."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """One stored rollout."""

    rollout: RolloutRecord
    annotations: tuple[AnnotationRecord, ...] = ()
    missing: tuple[str, ...] = ()
    """Annotations that its group still waits for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostTry:
    """A try that was never stored, because its worker was gone."""

    slot: HeldSlot
    session: str
    worker: str
    reason: str
    """worker_lost or worker_left."""
    at: float
    """When it was given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberStory:
    """One slot, every try at it that was stored, and those that were lost."""

    slot: MemberRecord
    tries: tuple[Try, ...] = ()
    lost: tuple[LostTry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateStory:
    """One update that the group was cut into, whatever came of it."""

    update: int
    term: int
    cut_at: float
    newest_version: int
    """Newest version at the cut."""
    outcome: Outcome | None = None
    version: Version | None = None
    """Weights that came of it."""
    checkpoint: int | None = None
    """First kept checkpoint that contains it."""
    undone: bool = False
    """A later term began before this update and gave its groups back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened."""

    at: float
    """Seconds since 1970, by the store's clock."""
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What is known about what was asked for."""

    run: str
    asked: str
    kind: Literal["group", "member", "rollout"]
    group: GroupRecord
    members: tuple[MemberStory, ...]
    """All of them for a group; the one in question otherwise."""
    updates: tuple[UpdateStory, ...] = ()
    lease: LeaseRecord | None = None
    """Under which an outside consumer has the group, or had it for good; the id of a compatible read is that of its lease."""
    former_leases: tuple[LeaseRecord, ...] = ()
    """Under which others had it before, and gave it back or were too late."""
    archive: ArchiveFile | None = None
    """The file that its bytes have moved to."""
    events: tuple[Event, ...] = ()
