"""Which state may follow which: one table for groups, one for members, and the two functions that move them."""

from __future__ import annotations

from typing import Any

from penstock.errors import InvariantError
from penstock.types import GroupRecord, GroupState, MemberRecord, MemberState
from penstock.types.frozen import changed

GROUP_MOVES: dict[GroupState, frozenset[GroupState]] = {
    GroupState.OPEN: frozenset({GroupState.COMPLETE, GroupState.DROPPED}),
    GroupState.COMPLETE: frozenset({GroupState.READY, GroupState.DROPPED}),
    GroupState.READY: frozenset({GroupState.BOUND, GroupState.DROPPED}),
    # Back to READY by a recut under a new term, or with reuse left.
    GroupState.BOUND: frozenset({GroupState.SPENT, GroupState.READY, GroupState.DROPPED}),
    GroupState.SPENT: frozenset(),
    GroupState.DROPPED: frozenset(),
}

MEMBER_MOVES: dict[MemberState, frozenset[MemberState]] = {
    # PENDING again when the slot is handed out anew, as the next retry.
    MemberState.PENDING: frozenset({MemberState.PENDING, MemberState.ACCEPTED, MemberState.FAILED}),
    MemberState.ACCEPTED: frozenset(),
    MemberState.FAILED: frozenset(),
}

ENDED = frozenset({GroupState.SPENT, GroupState.DROPPED})
"""States that nothing follows."""


def move_group(group: GroupRecord, *states: GroupState, **changes: Any) -> GroupRecord:
    """The group in the last of `states`, to which it goes through the others; as it is if there are none.

    Raises `InvariantError` if the table does not allow it.
    """
    if not states:
        return group
    last = group.state
    for state in states:
        if state not in GROUP_MOVES[last]:
            raise InvariantError(f"group {group.id} cannot go from {last} to {state}")
        last = state
    return changed(group, state=last, **changes)


def move_member(member: MemberRecord, state: MemberState, **changes: Any) -> MemberRecord:
    """The slot in its next state. Raises `InvariantError` if the table does not allow it."""
    if state not in MEMBER_MOVES[member.state]:
        raise InvariantError(f"member {member.member} of group {member.group_id} cannot go from {member.state} to {state}")
    return changed(member, state=state, **changes)
