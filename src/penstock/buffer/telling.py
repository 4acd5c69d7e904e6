"""Looks up the story of whatever somebody names."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from penstock.buffer.archive.collecting import archive_file_of
from penstock.buffer.compat.intake import id_of
from penstock.buffer.core import Buffer
from penstock.buffer.sentences import events
from penstock.buffer.store.protocol import History
from penstock.buffer.story import MEMBER_MARK, LostTry, MemberStory, Story, Try, UpdateStory
from penstock.errors import CorruptError, InexactError, InvalidError, UnknownError
from penstock.ledger import Ledger
from penstock.ledger.leases import find_lease
from penstock.types import GroupRecord, GroupState, LeaseRecord, MemberState, Plan, Purpose, RolloutRecord
from penstock.wire import check_id

LONGEST_NAME = 4096 + 8
"""Characters of what may be asked for: the longest id of an item, and a member's number."""
_PASSES_NAMED = 8
"""Groups of an instance that are named to somebody who asks for the instance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """What somebody means."""

    group: GroupRecord
    member: str | None = None
    """Number of the slot, if one was named."""
    rollout: RolloutRecord | None = None


def find(buffer: Buffer, run: str, asked: str) -> Named:
    """What has the name `asked`: a group's id, a rollout's uid, or `<group>#<member>`; of items also as they were written.

    Raises `InvalidError` for what cannot be a name, `UnknownError` if nothing has it, `InexactError` if something has nearly it.
    """
    if not 0 < len(asked) <= LONGEST_NAME or not asked.isprintable():
        raise InvalidError(f"id: must be 1 to {LONGEST_NAME} printable characters, got {asked[:80]!a}")
    ledger = buffer.ledger(run)
    # What is no id of ours may be one that an item came with; its own may have the mark of a member in it.
    for name in dict.fromkeys((asked, id_of(asked))):
        found = _named(buffer, ledger, name)
        if found is not None:
            return found
    name, mark, member = asked.rpartition(MEMBER_MARK)
    for group_id in dict.fromkeys((name, id_of(name))) if mark and name else ():
        group = ledger.find_group(buffer.store, group_id) if _is_id(group_id) else None
        if group is not None:
            return Named(group=group, member=member)
    passes = _passes(buffer, ledger, id_of(asked))
    if passes:
        raise InexactError(f"{asked!r} of run {run} has groups of its own, one for each pass: ask for {', '.join(passes)}")
    raise UnknownError(f"run {run} has no group, member or rollout {asked!r}; a member is named <group>{MEMBER_MARK}<number>")


def tell(buffer: Buffer, run: str, asked: str, history: History | None = None) -> Story:
    """The story of whatever `find` finds. `history` is the store's of the group; it is looked up if it is not given, which takes its time."""
    ledger, store = buffer.ledger(run), buffer.store
    named = find(buffer, run, asked)
    group, rollout = named.group, named.rollout
    past = store.history(run, group.id) if history is None else history
    members = _members(buffer, ledger, group, past)
    if group.arrival is not None and group.state is GroupState.OPEN:
        # Its record is written when its state changes and not with every item.
        accepted = sum(member.slot.state is MemberState.ACCEPTED for member in members)
        group = replace(group, usable=accepted, pending=group.size - len(members))
    kind: Literal["group", "member", "rollout"] = "group"
    if rollout is not None:
        kind = "rollout"
        own = [member for member in members if member.slot.member == rollout.member]
        members = tuple(replace(member, tries=tuple(found for found in member.tries if found.rollout.uid == rollout.uid), lost=()) for member in own)
    elif named.member is not None:
        kind = "member"
        members = tuple(found for found in members if str(found.slot.member) == named.member)
        if not members:
            raise InexactError(f"group {group.id} has {group.size} members, counted from 0; there is no member {named.member[:20]!r}")
    story = Story(
        run=run,
        asked=asked,
        kind=kind,
        group=group,
        members=members,
        updates=_updates(buffer, ledger, group, past),
        lease=_lease(buffer, ledger, group),
        former_leases=tuple(lease for lease in past.leases if lease.lease != group.lease),
        archive=archive_file_of(store, group),
    )
    return replace(story, events=events(story, ledger))


def _named(buffer: Buffer, ledger: Ledger, name: str) -> Named | None:
    if not _is_id(name):
        return None
    group = ledger.find_group(buffer.store, name)
    if group is not None:
        return Named(group=group)
    rollout = ledger.find_rollout(buffer.store, name)
    group = None if rollout is None else ledger.find_group(buffer.store, rollout.group_id)
    return None if group is None else Named(group=group, rollout=rollout)


def _is_id(name: str) -> bool:
    try:
        check_id(name, "id")
    except InvalidError:
        return False
    return True


def _passes(buffer: Buffer, ledger: Ledger, instance: str) -> list[str]:
    """The first groups of an instance whose items arrive by themselves."""
    found: list[str] = []
    while len(found) < _PASSES_NAMED and ledger.find_group(buffer.store, f"{instance}/{len(found)}") is not None:
        found.append(f"{instance}/{len(found)}")
    return found


def _members(buffer: Buffer, ledger: Ledger, group: GroupRecord, past: History) -> tuple[MemberStory, ...]:
    store, run = buffer.store, ledger.run.run
    rollouts = store.rollouts(run, group.id)
    annotations = store.annotations(run, group.id)
    waits = group.state is GroupState.COMPLETE and group.purpose is Purpose.TRAIN
    lost = _lost(group, past)
    stories = []
    for slot in store.members(run, group.id):
        tries = []
        for rollout in rollouts:
            if rollout.member == slot.member:
                own = tuple(found for found in annotations if found.rollout_uid == rollout.uid)
                names = {found.name for found in own}
                missing = tuple(name for name in ledger.laws.annotations if name not in names) if waits and rollout.status.usable else ()
                tries.append(Try(rollout=rollout, annotations=own, missing=missing))
        stories.append(MemberStory(slot=slot, tries=tuple(tries), lost=tuple(each for each in lost if each.slot.member == slot.member)))
    return tuple(stories)


def _lease(buffer: Buffer, ledger: Ledger, group: GroupRecord) -> LeaseRecord | None:
    try:
        return find_lease(ledger, buffer.store, group.lease) if group.lease else None
    except CorruptError:
        return None  # the rest of the story is none the less true


def _lost(group: GroupRecord, past: History) -> list[LostTry]:
    return [
        LostTry(slot=slot, session=session.session, worker=session.worker, reason=session.reason or "", at=session.ended_at or 0.0)
        for session in past.sessions
        for slot in session.held
        if slot.group_id == group.id
    ]


def _updates(buffer: Buffer, ledger: Ledger, group: GroupRecord, past: History) -> tuple[UpdateStory, ...]:
    """Those that the group is in, and those that were skipped or undone."""
    plans: dict[int, Plan | None] = {plan.update: plan for plan in past.plans}
    for update in group.updates:
        plans[update] = plans.get(update) or ledger.plans.get(update) or buffer.store.plan(ledger.run.run, update)
    return tuple(_update(ledger, update, plan) for update, plan in sorted(plans.items()))


def _update(ledger: Ledger, update: int, plan: Plan | None) -> UpdateStory:
    undone = plan is not None and plan.void
    outcome = None if undone else ledger.outcomes.get(update)
    version = ledger.versions.get(outcome.version) if outcome is not None and outcome.version is not None else None
    return UpdateStory(
        update=update,
        term=plan.term if plan else 0,
        cut_at=plan.cut_at if plan else 0.0,
        newest_version=plan.newest_version if plan else -1,
        outcome=outcome,
        version=version,
        checkpoint=None if undone else min((kept for kept in ledger.checkpoints if kept > update), default=None),
        undone=undone,
    )
