"""The whole story of a group, a member or a rollout: what happened to it, when, and what became of it. For `where`.

`tell` looks it up, in a live buffer or in a store that is only read; `events` puts it into sentences, in order of time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from penstock.buffer.archive.collecting import archive_file_of
from penstock.buffer.core import Buffer
from penstock.errors import UnknownError
from penstock.ledger import Ledger
from penstock.ledger.leases import find_lease
from penstock.types import (
    AnnotationRecord,
    ArchiveFile,
    GroupRecord,
    GroupState,
    LeaseRecord,
    MemberRecord,
    MemberState,
    Outcome,
    Plan,
    Purpose,
    RolloutRecord,
    Version,
)

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
class MemberStory:
    """One slot, and every try at it that was stored."""

    slot: MemberRecord
    tries: tuple[Try, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateStory:
    """One update that the group was cut into."""

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
    archive: ArchiveFile | None = None
    """The file that its bytes have moved to."""
    events: tuple[Event, ...] = ()


def tell(buffer: Buffer, run: str, asked: str) -> Story:
    """The story of a group id, a rollout's uid, or `<group>#<member>`. Raises `UnknownError` if nothing has that name."""
    ledger, store = buffer.ledger(run), buffer.store
    kind: Literal["group", "member", "rollout"] = "group"
    group_id, _, member = asked.partition(MEMBER_MARK)
    group = ledger.find_group(store, group_id)
    rollout = None if group else ledger.find_rollout(store, asked)
    if rollout is not None:
        kind, group = "rollout", ledger.find_group(store, rollout.group_id)
    if group is None:
        raise UnknownError(f"run {run} has no group, member or rollout {asked!r}; a member is named <group>{MEMBER_MARK}<number>")
    members = _members(buffer, ledger, group)
    if rollout is not None:
        own = [member for member in members if member.slot.member == rollout.member]
        members = tuple(replace(member, tries=tuple(found for found in member.tries if found.rollout.uid == asked)) for member in own)
    elif member:
        kind = "member"
        members = tuple(found for found in members if str(found.slot.member) == member)
        if not members:
            raise UnknownError(f"group {group.id} has {group.size} members, counted from 0; there is no member {member[:20]!r}")
    updates = tuple(_update(buffer, ledger, update) for update in group.updates)
    lease = find_lease(ledger, store, group.lease) if group.lease else None
    story = Story(run=run, asked=asked, kind=kind, group=group, members=members, updates=updates, lease=lease, archive=archive_file_of(store, group))
    return replace(story, events=events(story, ledger))


def events(story: Story, ledger: Ledger) -> tuple[Event, ...]:
    """The story in sentences, oldest first; what one decision did, in the order in which one thing led to the other."""
    group = story.group
    opened = Event(at=group.opened_at, what=f"opened for problem {group.problem_id} of {group.environment} ({group.purpose}) with {group.size} members")
    found = [opened, *_member_events(story), *_ready_events(group), *_update_events(story, ledger), *_lease_events(story.lease)]
    found += [*_end_events(group), *_archive_events(story.archive)]
    return tuple(sorted(found, key=lambda event: event.at))


def _members(buffer: Buffer, ledger: Ledger, group: GroupRecord) -> tuple[MemberStory, ...]:
    store, run = buffer.store, ledger.run.run
    rollouts = store.rollouts(run, group.id)
    annotations = store.annotations(run, group.id)
    waits = group.state is GroupState.COMPLETE and group.purpose is Purpose.TRAIN
    stories = []
    for slot in store.members(run, group.id):
        tries = []
        for rollout in rollouts:
            if rollout.member == slot.member:
                own = tuple(found for found in annotations if found.rollout_uid == rollout.uid)
                names = {found.name for found in own}
                missing = tuple(name for name in ledger.laws.annotations if name not in names) if waits and rollout.status.usable else ()
                tries.append(Try(rollout=rollout, annotations=own, missing=missing))
        stories.append(MemberStory(slot=slot, tries=tuple(tries)))
    return tuple(stories)


def _update(buffer: Buffer, ledger: Ledger, update: int) -> UpdateStory:
    plan: Plan | None = ledger.plans.get(update) or buffer.store.plan(ledger.run.run, update)
    outcome = ledger.outcomes.get(update)
    version = ledger.versions.get(outcome.version) if outcome is not None and outcome.version is not None else None
    return UpdateStory(
        update=update,
        term=plan.term if plan else 0,
        cut_at=plan.cut_at if plan else 0.0,
        newest_version=plan.newest_version if plan else -1,
        outcome=outcome,
        version=version,
        checkpoint=min((kept for kept in ledger.checkpoints if kept > update), default=None),
    )


def _ready_events(group: GroupRecord) -> Iterator[Event]:
    if group.completed_at is not None:
        yield Event(at=group.completed_at, what=f"complete: {group.usable} of {group.size} members can be trained on")
    if group.ready_at is not None:
        versions = f"versions {group.oldest_version} to {group.newest_version}, " if group.oldest_version is not None else ""
        yield Event(at=group.ready_at, what=f"ready: {group.tokens} tokens, {versions}content {group.digest}")


def _end_events(group: GroupRecord) -> Iterator[Event]:
    if group.ended_at is not None:
        yield Event(at=group.ended_at, what=f"dropped: {group.reason}" if group.state is GroupState.DROPPED else "spent")


def _member_events(story: Story) -> Iterator[Event]:
    for member in story.members:
        slot = member.slot
        if slot.state is MemberState.PENDING and slot.session is not None and slot.claimed_at is not None:
            yield Event(at=slot.claimed_at, what=f"member {slot.member}: try {slot.retry} was claimed by session {slot.session} and is awaited")
        for found in member.tries:
            rollout = found.rollout
            yield Event(at=rollout.stored_at, what=f"member {slot.member}: try {rollout.retry} stored as {rollout.uid}, {_outcome_of(rollout)}")
            for annotation in found.annotations:
                failed = f" failed: {annotation.failed}" if annotation.failed is not None else ""
                step = f" of step {annotation.step}" if annotation.step is not None else ""
                yield Event(at=annotation.stored_at, what=f"member {slot.member}: annotation {annotation.name}{step}{failed or ' stored'}")


def _outcome_of(rollout: RolloutRecord) -> str:
    if not rollout.status.usable:
        return f"{rollout.status}: {rollout.failure}"
    versions = f" of version {', '.join(map(str, rollout.versions))}" if rollout.versions else ""
    stale = "; too old to be trained on" if rollout.stale else ""
    reward = "no reward" if rollout.reward is None else f"reward {rollout.reward:g}"
    return f"{rollout.status}, {reward}, {rollout.sampled_tokens} sampled tokens{versions}{stale}"


def _update_events(story: Story, ledger: Ledger) -> Iterator[Event]:
    for update in story.updates:
        yield Event(at=update.cut_at, what=f"cut into update {update.update} under term {update.term}; the newest version was {update.newest_version}")
        outcome = update.outcome
        if outcome is not None:
            made = f"version {outcome.version}, weights {outcome.digest}" if outcome.kind == "applied" else f"skipped: {outcome.reason}"
            yield Event(at=outcome.recorded_at, what=f"update {update.update} was recorded: {made}")
        if update.checkpoint is not None:
            yield Event(at=ledger.checkpoints[update.checkpoint].kept_at, what=f"checkpoint update_{update.checkpoint} contains update {update.update}")


def _lease_events(lease: LeaseRecord | None) -> Iterator[Event]:
    if lease is not None:
        groups = f"{len(lease.groups)} group{'s' if len(lease.groups) != 1 else ''}"
        yield Event(at=lease.taken_at, what=f"taken by {lease.consumer} under lease {lease.lease} (number {lease.fence}) with {groups}")
        if lease.ended_at is not None:
            yield Event(at=lease.ended_at, what=f"lease {lease.lease} was {lease.state}")


def _archive_events(file: ArchiveFile | None) -> Iterator[Event]:
    if file is not None:
        yield Event(at=file.written_at, what=f"moved to the archive file {file.name}")
        if file.retired_at is not None:
            yield Event(at=file.retired_at, what=f"the archive file {file.name} was retired: its bytes are gone, what is told here stays")
