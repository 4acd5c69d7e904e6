"""Groups in the hands of outside consumers, and how far readers of the compatible routes have come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from penstock.types.updates import PlannedGroup
from penstock.types.words import Word


class LeaseState(Word):
    """`taken -> settled | released | expired`."""

    TAKEN = "taken"
    """The consumer has the groups, until its time is up."""
    SETTLED = "settled"
    """The consumer has used them: they are spent."""
    RELEASED = "released"
    """The consumer gave them back."""
    EXPIRED = "expired"
    """The consumer was not heard of in time: others may take them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRecord:
    """Whole groups in the hands of an outside consumer. The consumer chooses the id, so that a request that comes twice takes nothing twice."""

    run: str
    lease: str
    consumer: str
    """Who may renew, settle and release it."""
    groups: tuple[PlannedGroup, ...]
    """In the order they were chosen."""
    state: LeaseState
    fence: int
    """Number of the lease: grows with each one in the run. A consumer's own store can refuse smaller ones."""
    seconds: float
    """How long it lasts after it was taken or renewed."""
    expires_at: float
    taken_at: float
    ended_at: float | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    """What the consumer wants to be kept with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRequest:
    """Which groups an outside consumer wants. Without `groups` and `items`: all that are ready. One lease has 4,096 groups at most; take the next for more."""

    groups: int | None = None
    """At most so many groups."""
    items: int | None = None
    """The fewest whole groups that hold so many usable members; none at all while there are not so many. Refused if more groups would be needed than
    one lease may have."""
    at_least: int = 1
    """Groups that must be ready, or else there is nothing yet."""
    environments: tuple[str, ...] | None = None
    """Of these only; None: of all."""
    order: Literal["oldest", "newest"] = "oldest"
    seconds: float = 60.0
    """How long the consumer may be silent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderRecord:
    """How far a reader of the compatible routes has come, so that its next reply starts there after a restart too."""

    run: str
    reader: str
    read_id: str = ""
    """The last read that gave something."""
    read_at: float = 0.0
    ready_order: int = -1
    """Largest `ready_order` of any group at that time."""
    reads: int = 0
    items: int = 0
    """All that it was ever given."""
