"""Checks of what was written: is it there, byte for byte, and is every group, member and lease accounted for."""

from __future__ import annotations

from dataclasses import replace

from penstock.buffer.checks.findings import Held, Looked
from penstock.buffer.intake import rollout_intake
from penstock.errors import CorruptError, InputError, RetiredError, SchemaError, UnknownError
from penstock.ledger import balance, imbalance, recount
from penstock.ledger.groups import content_digest
from penstock.types import GroupRecord, GroupState, LeaseState, MemberState, RolloutRecord
from penstock.wire import digest


def stored(held: Held) -> Looked:
    """The bytes of every rollout, in the store or in the archive, and that its record follows from them."""
    num_rollouts, num_retired, broken = 0, 0, []
    for rollout in held.buffer.store.scan_rollouts(held.run):
        num_rollouts += 1
        try:
            wrong = _wrong_bytes(held, rollout)
        except RetiredError:
            num_retired += 1
            continue
        if wrong is not None:
            broken.append(wrong)
    retired = f", {num_retired} of them retired" if num_retired else ""
    return f"bytes of {num_rollouts} stored rollouts{retired}", broken


def _wrong_bytes(held: Held, rollout: RolloutRecord) -> str | None:
    try:
        payload = held.buffer.store.payload(held.run, rollout.uid)
    except CorruptError:
        return None  # the store has noted it, and `undamaged` tells
    except RetiredError:
        raise
    except UnknownError:
        return f"rollout {rollout.uid} is on record but its bytes are not in the store"
    if digest(payload.body) != rollout.digest:
        return f"rollout {rollout.uid} was accepted with digest {rollout.digest} and holds other bytes"
    if rollout.form == "item":
        return None  # how an item is read is up to the settings that it came under
    try:
        told, _ = rollout_intake(held.run, payload.body, payload.content_type)
    except (InputError, SchemaError) as error:
        return f"rollout {rollout.uid} would not be accepted now: {error}"
    if replace(told, stale=rollout.stale, stored_at=rollout.stored_at) != rollout:
        return f"rollout {rollout.uid} is on record with facts that do not follow from its bytes"
    return None


def conserved(held: Held) -> Looked:
    """Every group and member is in exactly one place, counted in three ways."""
    store = held.buffer.store
    groups = list(store.scan_groups(held.run))
    members = [member for group in groups for member in store.members(held.run, group.id)]
    broken = []
    if recount(groups, members) != tuple(found for found in balance(held.ledger) if found.opened):
        broken.append("counting the records one by one gives another account than the ledger's own")
    if imbalance(held.ledger):
        broken.append(f"{imbalance(held.ledger)} groups, members or credits are unaccounted for")
    issued = sum(_issued(held, group) for group in groups)
    if issued != len(members):
        broken.append(f"{issued} members were issued and {len(members)} are on record")
    return f"{len(groups)} groups and {len(members)} members", broken


def _issued(held: Held, group: GroupRecord) -> int:
    """Members that a group must have on record: all from the start, or one for each item that has arrived."""
    return group.size if group.arrival is None else len(held.buffer.store.rollouts(held.run, group.id))


def unmixed(held: Held) -> Looked:
    """Each slot was filled by a rollout of its own group, no rollout fills two, and a group that became ready still holds what it held then."""
    filled: dict[str, str] = {}
    num_groups, broken = 0, []
    for group in held.buffer.store.scan_groups(held.run):
        num_groups += 1
        for uid in _accepted(held, group):
            if uid in filled:
                broken.append(f"rollout {uid} fills a slot of group {filled[uid]} and one of {group.id}")
            filled[uid] = group.id
        broken += _mixed(held, group)
    return f"{len(filled)} filled slots of {num_groups} groups", broken


def _mixed(held: Held, group: GroupRecord) -> list[str]:
    store = held.buffer.store
    rollouts = {rollout.uid: rollout for rollout in store.rollouts(held.run, group.id)}
    members = [member for member in store.members(held.run, group.id) if member.state is MemberState.ACCEPTED]
    broken = [
        f"member {member.member} of group {group.id} was filled by {member.uid}, which is no rollout of that slot"
        for member in members
        if member.uid is None or member.uid not in rollouts or rollouts[member.uid].member != member.member
    ]
    num_usable = sum(rollout.status.usable for rollout in rollouts.values())
    if num_usable != len(members):
        broken.append(f"group {group.id} has {num_usable} usable rollouts for {len(members)} filled slots")
    # What went to the archive as dropped before it was ready has no digest to hold it to.
    if group.ready_order is not None and not broken:
        usable = [rollouts[member.uid] for member in members if member.uid is not None and rollouts[member.uid].status.usable]
        if content_digest(usable, store.annotations(held.run, group.id)) != group.digest:
            broken.append(f"group {group.id} no longer holds what it was made of when it became ready (digest {group.digest})")
    return broken


def _accepted(held: Held, group: GroupRecord) -> list[str]:
    members = held.buffer.store.members(held.run, group.id)
    return [member.uid for member in members if member.state is MemberState.ACCEPTED and member.uid is not None]


def leased(held: Held) -> Looked:
    """Groups and leases tell one story: what is taken is bound, what is settled is spent, and no group is in two hands."""
    store, broken, num_groups = held.buffer.store, [], 0
    for group in store.scan_groups(held.run):
        if group.lease is None or group.state not in (GroupState.BOUND, GroupState.SPENT):
            continue
        num_groups += 1
        try:
            lease = store.lease(held.run, group.lease)
        except CorruptError:
            continue  # the store has noted it, and `undamaged` tells
        wanted = LeaseState.TAKEN if group.state is GroupState.BOUND else LeaseState.SETTLED
        if lease is None or lease.state is not wanted:
            state = "is not on record" if lease is None else f"is {lease.state}"
            broken.append(f"group {group.id} is {group.state} by the lease {group.lease}, which {state}")
        elif (group.id, group.digest) not in {(planned.id, planned.digest) for planned in lease.groups}:
            broken.append(f"group {group.id} is {group.state} by the lease {group.lease}, which does not name it")
        if group.updates:
            broken.append(f"group {group.id} is under the lease {group.lease} and in update {group.updates[-1]}")
    for lease in held.ledger.leases.values():
        for planned in lease.groups:
            try:
                found = store.group(held.run, planned.id)
            except CorruptError:
                continue  # the store has noted it, and `undamaged` tells
            if found is None or found.state is not GroupState.BOUND or found.lease != lease.lease:
                broken.append(f"the lease {lease.lease} is taken and its group {planned.id} is not bound to it")
    return f"{num_groups} leased groups", broken


def journalled(held: Held) -> Looked:
    """The journal of every episode is whole: an episode goes on from it."""
    store, broken, num_entries = held.buffer.store, [], 0
    episodes = store.episodes(held.run)
    for episode in episodes:
        try:
            entries = store.journal(held.run, episode)
        except CorruptError:
            continue  # the store has noted it, and `undamaged` tells
        num_entries += len(entries)
        if [entry.index for entry in entries] != list(range(len(entries))):
            broken.append(f"the journal of {episode} has a hole: there are {len(entries)} entries, the last is number {entries[-1].index}")
    return f"{num_entries} entries in the journals of {len(episodes)} episodes", broken


def undamaged(held: Held) -> Looked:
    """Everything that was found damaged, in this look at the store or ever before. Comes last, when all of it was read."""
    damage = list(held.buffer.store.corrupt(held.run))
    return f"{len(damage)} damaged records set aside", damage
