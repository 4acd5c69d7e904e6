"""Counts of a whole run, put together from counted rows: all that is known of ended groups without opening their records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from penstock.types import GroupState, MemberState, Purpose, Tally


class GroupCount(NamedTuple):
    """Groups that agree in the first five fields."""

    state: str
    environment: str
    purpose: str
    reason: str | None
    """Only of dropped ones."""
    source: str | None
    num_groups: int
    cursor: int | None
    """Largest of pass * 2^32 + index."""
    order: int
    """Largest."""
    ready_order: int | None
    """Largest."""
    num_ready: int
    """How many of them ever became ready."""
    ready_tokens: int | None
    lost_longest: int | None
    """Sum of `longest`, only of dropped ones."""
    num_filled: int | None
    """Sum of `filled`, only of those that are not open."""


class MemberCount(NamedTuple):
    """Members that agree in all but the number."""

    state: str
    environment: str
    purpose: str
    reason: str | None
    """Only of failed ones."""
    num_members: int


def tallies(groups: Iterable[GroupCount], members: Iterable[MemberCount]) -> dict[tuple[str, Purpose], Tally]:
    """The tally of each environment and purpose. Raises `ValueError` for a state or purpose that does not exist."""
    groups_by: dict[tuple[str, Purpose], list[GroupCount]] = defaultdict(list)
    members_by: dict[tuple[str, Purpose], list[MemberCount]] = defaultdict(list)
    for group in groups:
        groups_by[group.environment, Purpose(group.purpose)].append(group)
    for member in members:
        members_by[member.environment, Purpose(member.purpose)].append(member)
    return {key: _tally(counts, members_by[key]) for key, counts in groups_by.items()}


def filled_members(environment: str, purpose: str, num_filled: int) -> tuple[MemberCount, MemberCount]:
    """What puts members that are counted as pending, though a rollout fills them, where they belong."""
    pending = MemberCount(state=MemberState.PENDING, environment=environment, purpose=purpose, reason=None, num_members=-num_filled)
    return pending, pending._replace(state=MemberState.ACCEPTED, num_members=num_filled)


def cursors(groups: Iterable[GroupCount]) -> dict[str, tuple[int, int]]:
    """The largest (pass, index) of each source."""
    largest: dict[str, int] = {}
    for group in groups:
        if group.source is not None and group.cursor is not None:
            largest[group.source] = max(largest.get(group.source, 0), group.cursor)
    return {source: (value >> 32, value & 0xFFFFFFFF) for source, value in largest.items()}


def _tally(groups: Sequence[GroupCount], members: Sequence[MemberCount]) -> Tally:
    by_state: dict[tuple[GroupState, str | None], int] = defaultdict(int)
    longest: dict[str, int] = defaultdict(int)
    for group in groups:
        by_state[GroupState(group.state), group.reason] += group.num_groups
        if group.reason is not None:
            longest[group.reason] += group.lost_longest or 0
    by_member_state: dict[tuple[MemberState, str | None], int] = defaultdict(int)
    for member in members:
        by_member_state[MemberState(member.state), member.reason] += member.num_members
    return Tally(
        groups=dict(by_state),
        members={place: count for place, count in by_member_state.items() if count},
        ready_groups=sum(group.num_ready for group in groups),
        ready_tokens=sum(group.ready_tokens or 0 for group in groups),
        dropped_longest=dict(longest),
    )
