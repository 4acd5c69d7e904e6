"""Exact counts of everything a run ever had, by environment and purpose."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from penstock.types import GroupState, MemberState, Tally


@dataclass(slots=True)
class Counts:
    """Counts of one environment and purpose, kept up to date with every applied record."""

    groups: Counter[tuple[GroupState, str | None]] = field(default_factory=Counter)
    members: Counter[tuple[MemberState, str | None]] = field(default_factory=Counter)
    ready_groups: int = 0
    ready_tokens: int = 0
    dropped_longest: Counter[str] = field(default_factory=Counter)
    held_tokens: int = 0
    """Credits held by groups that are under way."""
    held_groups: int = 0
    """How many groups hold them."""
    bound_groups: int = 0
    """How many of those are in a plan: their credits come back when their weights are live."""

    @property
    def opened(self) -> int:
        """Groups in any state."""
        return sum(self.groups.values())

    @property
    def mean_tokens(self) -> float | None:
        """Mean cost of a group that became ready; None before the first."""
        return self.ready_tokens / self.ready_groups if self.ready_groups else None

    def start_from(self, tally: Tally) -> None:
        """Take over what a store has counted."""
        self.groups.update(tally.groups)
        self.members.update(tally.members)
        self.ready_groups, self.ready_tokens = tally.ready_groups, tally.ready_tokens
        self.dropped_longest.update(tally.dropped_longest)
