"""Counts of everything that a run ever had."""

from __future__ import annotations

from penstock.ledger.counts import Counts
from penstock.types import GroupState, MemberState, Tally


def test_what_a_store_has_counted_is_taken_over_and_counted_on() -> None:
    tally = Tally(
        groups={(GroupState.SPENT, None): 5, (GroupState.DROPPED, "stale"): 2},
        members={(MemberState.ACCEPTED, None): 9, (MemberState.FAILED, "late"): 1},
        ready_groups=4,
        ready_tokens=100,
        dropped_longest={"stale": 70},
    )
    counts = Counts()
    assert (counts.opened, counts.mean_tokens) == (0, None)
    counts.start_from(tally)
    assert (counts.opened, counts.mean_tokens) == (7, 25.0)
    assert counts.groups == tally.groups
    assert counts.members == tally.members
    assert counts.dropped_longest == tally.dropped_longest
    counts.groups[GroupState.SPENT, None] += 1
    assert (counts.opened, tally.groups[GroupState.SPENT, None]) == (8, 5)
