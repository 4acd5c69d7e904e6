"""One update after the other, as the buffer keeps them: who may make them, of what, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from penstock.types.frozen import quickly_made


@dataclass(frozen=True, slots=True, kw_only=True)
class TermRecord:
    """The learner's life. Requests with a smaller term are refused."""

    run: str
    term: int
    owner: str
    expires_at: float
    first_update: int
    """Where this life starts: the checkpoint it resumed from."""
    former: tuple[str, ...] = ()
    """Owners of earlier terms, whose lives are over."""


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedGroup:
    """A group in a plan, with the content it must still have when it is fetched."""

    id: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CutRequest:
    """How the caller wants one update's batch to be chosen. Kept in the plan, so that a replay can be checked against it."""

    budget_tokens: int | None = None
    """Hard ceiling of tokens; or else:"""
    groups_per_update: int | None = None
    """How many groups, exactly."""
    fractions: Mapping[str, float] = field(default_factory=dict)
    """Share of the budget by environment; empty: what `Laws` say."""
    order: Literal["oldest", "newest"] = "oldest"
    unallocated: Literal["proportional", "newest", "none"] = "proportional"
    """What happens to the share that no environment was given."""
    short: Literal["block", "spill"] = "block"
    """What happens when an environment with an unmet share has no ready group."""
    spill_after_seconds: float = 30.0
    waited_seconds: float = 0.0
    """How long the caller has been waiting for this cut."""
    config: Mapping[str, str] = field(default_factory=dict)
    """Credit and packing config, flat, for the record."""
    config_digest: str = ""
    world_size: int = 1
    seed: int = 0
    num_threads: int = 1
    libraries: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The durable manifest of one update's batch. Asking again for the update gives the same plan."""

    run: str
    update: int
    term: int
    """Term under which it was cut: a fact, not a permission."""
    groups: tuple[PlannedGroup, ...]
    """In the order they were chosen."""
    newest_version: int
    """Newest version at the cut; lag is measured against it, in a replay too."""
    tokens: int
    request: CutRequest
    carry: Mapping[str, float] = field(default_factory=dict)
    """Share that each environment is still owed (or owes) after this cut, bounded by one budget."""
    void: bool = False
    """Undone by a recut; another plan for the same update may follow."""
    cut_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a plan: `applied` with a version and a digest, or `skipped` with a reason."""

    run: str
    update: int
    kind: Literal["applied", "skipped"]
    version: int | None = None
    digest: str = ""
    reason: str | None = None
    void: bool = False
    """Undone by a recut. The version it allocated stays known and is not used again."""
    recorded_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A set of weights that was recorded. The number is never used again for other bytes. 0 is the initial weights."""

    run: str
    version: int
    digest: str
    policy: str = "policy"
    update: int | None = None
    """Update that made it; None for the initial weights."""
    fork: bool = False
    """Made by a replay whose digests differed from the recorded ones (hardware that is not deterministic)."""
    live: bool = False
    """Published: every server was told. Credits of the groups that made it have been returned."""
    recorded_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRecord:
    """`update_N` holds updates 0 to N-1. It exists for resume once this record is durable."""

    run: str
    update: int
    digest: str
    term: int
    kept: bool = True
    """False once it was retired."""
    kept_at: float = 0.0
