"""Conservation: every group and member that was ever issued is in exactly one place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.ledger.book import Ledger
from penstock.ledger.counts import Counts
from penstock.types import GroupRecord, GroupState, MemberRecord, MemberState, Purpose

# Asked for with every group, and an enum takes its time to name a member.
_PENDING, _ACCEPTED = MemberState.PENDING, MemberState.ACCEPTED


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """Where the groups and members of one environment and purpose are.

    groups opened = open + complete + ready + bound + spent + dropped;  members issued = pending + accepted + failed
    """

    environment: str
    purpose: Purpose
    groups: dict[str, int] = field(default_factory=dict)
    """By state; dropped ones as `dropped(reason)`."""
    members: dict[str, int] = field(default_factory=dict)
    """By state; failed ones as `failed(reason)`."""

    @property
    def opened(self) -> int:
        """Groups in any state."""
        return sum(self.groups.values())

    @property
    def issued(self) -> int:
        """Members in any state."""
        return sum(self.members.values())


def balance(ledger: Ledger) -> tuple[Balance, ...]:
    """The ledger's own account, by environment and purpose."""
    return tuple(_balance(*key, counts) for key, counts in sorted(ledger.counts.items()))


def recount(groups: Iterable[GroupRecord], members: Iterable[MemberRecord]) -> tuple[Balance, ...]:
    """The same account made from the records one by one, by a route that shares nothing with the running counts."""
    counts: dict[tuple[str, Purpose], Counts] = {}
    place: dict[str, tuple[str, Purpose]] = {}
    for group in groups:
        key = place[group.id] = (group.environment, group.purpose)
        counts.setdefault(key, Counts()).groups[group.state, group.reason] += 1
    for member in members:
        reason = member.reason if member.state is MemberState.FAILED else None
        counts[place[member.group_id]].members[member.state, reason] += 1
    return tuple(_balance(*key, found) for key, found in sorted(counts.items()))


def imbalance(ledger: Ledger) -> int:
    """How many groups, members and pools of credit do not add up. 0, or somebody lost something.

    Groups are numbered as they are opened, so their number is known without counting states; the live ones are looked at one by one.
    """
    return uncounted(ledger) + unfilled(ledger, ledger.groups)


def uncounted(ledger: Ledger) -> int:
    """The part of `imbalance` that is about the running counts: it needs all groups at one moment."""
    opened = sum(counts.opened for counts in ledger.counts.values())
    missing = abs(ledger.last_order + 1 - opened)
    live: Counter[tuple[str, Purpose, GroupState]] = Counter()
    held: Counter[tuple[str, Purpose]] = Counter()
    for group in ledger.groups.values():
        live[group.environment, group.purpose, group.state] += 1
        held[group.environment, group.purpose] += group.credit
    for (environment, purpose), counts in ledger.counts.items():
        for state in (GroupState.OPEN, GroupState.COMPLETE, GroupState.BOUND):
            missing += abs(counts.groups[state, None] - live[environment, purpose, state])
        missing += counts.held_tokens != held[environment, purpose]
    return missing


def unfilled(ledger: Ledger, group_ids: Iterable[str]) -> int:
    """The part of `imbalance` that is about slots, for some groups: each is right or wrong by itself. Those that have ended have none."""
    missing = 0
    for group_id in group_ids:
        group, slots = ledger.groups.get(group_id), ledger.members.get(group_id)
        if group is not None and slots is not None:
            # Counted by the list, not one by one: there may be a million of them.
            states = [slot.state for slot in slots]
            missing += abs(group.pending - states.count(_PENDING)) + abs(group.usable - states.count(_ACCEPTED)) + abs(group.size - len(states))
    return missing


def _balance(environment: str, purpose: Purpose, counts: Counts) -> Balance:
    groups = {_place(state.value, reason): count for (state, reason), count in sorted(counts.groups.items(), key=str) if count}
    members = {_place(state.value, reason): count for (state, reason), count in sorted(counts.members.items(), key=str) if count}
    return Balance(environment=environment, purpose=purpose, groups=groups, members=members)


def _place(state: str, reason: str | None) -> str:
    return state if reason is None else f"{state}({reason})"
