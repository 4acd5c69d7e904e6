"""A story in sentences."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.buffer.story import Event, Story
from penstock.ledger import Ledger
from penstock.types import ArchiveFile, GroupRecord, GroupState, LeaseRecord, LeaseState, MemberState, RolloutRecord

_LEASE_ENDS = {
    LeaseState.TAKEN: "is taken",
    LeaseState.SETTLED: "was settled",
    LeaseState.RELEASED: "was released: ready again",
    LeaseState.EXPIRED: "has expired: ready again",
}
_LOST = {"worker_lost": "was not heard of any more", "worker_left": "left before it was done"}


def events(story: Story, ledger: Ledger) -> tuple[Event, ...]:
    """The story in sentences, oldest first; what one decision did, in the order in which one thing led to the other."""
    group = story.group
    opened = Event(at=group.opened_at, what=f"opened for problem {group.problem_id} of {group.environment} ({group.purpose}) with {group.size} members")
    found = [opened, *_member_events(story), *_ready_events(group), *_update_events(story, ledger)]
    for lease in (*story.former_leases, *([story.lease] if story.lease is not None else [])):
        found += _lease_events(lease)
    found += [*_end_events(group), *_archive_events(story.archive)]
    return tuple(sorted(found, key=lambda event: event.at))


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
        for lost in member.lost:
            claimed = f"member {slot.member}: try {lost.slot.retry} was claimed by {lost.worker}"
            if lost.slot.claimed_at is not None:
                yield Event(at=lost.slot.claimed_at, what=claimed)
            yield Event(at=lost.at, what=f"member {slot.member}: try {lost.slot.retry} was given up: {lost.worker} {_LOST.get(lost.reason, lost.reason)}")
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
        undone = "; undone by a later term" if update.undone else ""
        cut = f"cut into update {update.update} under term {update.term}; the newest version was {update.newest_version}{undone}"
        yield Event(at=update.cut_at, what=cut)
        outcome = update.outcome
        if outcome is not None:
            made = f"version {outcome.version}, weights {outcome.digest}" if outcome.kind == "applied" else f"skipped: {outcome.reason}"
            yield Event(at=outcome.recorded_at, what=f"update {update.update} was recorded: {made}")
        if update.checkpoint is not None:
            yield Event(at=ledger.checkpoints[update.checkpoint].kept_at, what=f"checkpoint update_{update.checkpoint} contains update {update.update}")


def _lease_events(lease: LeaseRecord) -> Iterator[Event]:
    groups = f"{len(lease.groups)} group{'s' if len(lease.groups) != 1 else ''}"
    yield Event(at=lease.taken_at, what=f"taken by {lease.consumer} under lease {lease.lease} (number {lease.fence}) with {groups}")
    if lease.ended_at is not None:
        yield Event(at=lease.ended_at, what=f"lease {lease.lease} {_LEASE_ENDS[lease.state]}")


def _archive_events(file: ArchiveFile | None) -> Iterator[Event]:
    if file is not None:
        yield Event(at=file.written_at, what=f"moved to the archive file {file.name}")
        if file.retired_at is not None:
            yield Event(at=file.retired_at, what=f"the archive file {file.name} was retired: its bytes are gone, what is told here stays")
