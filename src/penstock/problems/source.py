"""What a source of problems is."""

from __future__ import annotations

from typing import Protocol

from penstock.types import Problem


class ProblemSource(Protocol):
    """Problems by position. A pure function of the position, so that a group that was opened yesterday, or by somebody else, finds its problem again."""

    @property
    def name(self) -> str:
        """Names the source among those of its environment; becomes part of group ids."""

    @property
    def size(self) -> int | None:
        """Problems in one pass; None if it never ends."""

    def problem(self, pass_: int, index: int) -> Problem:
        """The problem at a place of a pass. `index` lies below `size`. Another pass may have another order."""
