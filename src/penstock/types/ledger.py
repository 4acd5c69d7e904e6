"""What the buffer keeps of a run: its laws, and the table of all durable records.

Every record belongs to one run, has a key inside it, and is stored whole; writing a record with the same key replaces the older one.
`Payload`, `ArrivedItem` and `JournalEntry` are written once and never replaced.

    run        RunRecord            laws and identity of a run
    source/..  GroupRecord          one group, its state, its credit, what it was cut into
    (g, m)     MemberRecord         one slot of a group
    uid        RolloutRecord        one stored try at a slot; its bytes are the Payload of the same uid
    uid        ArrivedItem          an item of the compatible routes: slot, rollout and bytes in one
    groups     SpentGroups          groups that a read took, each as if its record was written again
    (u, n, s)  AnnotationRecord     one annotation; its bytes are a Payload too
    session    SessionRecord        a worker that claims slots and must be heard of
    lease      LeaseRecord          groups that an outside consumer has, for a time or for good
    reader     ReaderRecord         how far a reader of the compatible routes has come
    -          TermRecord           who may cut, record, publish and save
    update     Plan, Outcome        one update's batch, and what came of it
    version    Version              weights that were recorded, by number
    update     CheckpointRecord     a checkpoint that resume may start from
    name       ArchiveFile          a Parquet file with rollouts of groups that have ended
    uid        Moved                says that the bytes of a payload are in such a file now
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from penstock.types.arrivals import ArrivedItem, SpentGroups
from penstock.types.episodes import Purpose
from penstock.types.groups import AnnotationRecord, GroupRecord, GroupState, MemberRecord, MemberState, RolloutRecord
from penstock.types.kept import ArchiveFile, JournalEntry, Moved, Payload
from penstock.types.leases import LeaseRecord, ReaderRecord
from penstock.types.updates import CheckpointRecord, Outcome, Plan, TermRecord, Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Laws:
    """The rules of a run that the buffer applies to every write and cut. Stored with the run."""

    max_lag: int = 1
    """How many versions old a sampled token may be when it is trained on."""
    min_group_size: int = 2
    """Usable members that a group needs."""
    max_retries: int = 3
    """New tries at a slot after infrastructure failures or a lost worker."""
    max_reuse: int = 1
    """Updates that a group may take part in."""
    credit_tokens: int = 32_768
    """Tokens that may be under way at once; more could not all be trained in time."""
    credit_groups: int | None = None
    """Groups that may be under way at once, for runs that cut by number of groups; then `credit_tokens` does not count."""
    fractions: Mapping[str, float] = field(default_factory=dict)
    """Share of credits and budget by environment. An environment that is not named shares what is left with the others that are not."""
    annotations: tuple[str, ...] = ()
    """Names that must be present, or have failed, on every usable member before a group is ready."""
    session_seconds: float = 10.0
    """A worker that is not heard of for so long is lost."""
    term_seconds: float = 10.0
    """A learner that does not renew for so long may be replaced."""
    endangered: Literal["drop", "wait"] = "drop"
    """What a cut does about an open group that the next version would make stale: go on and lose it, or wait for it."""
    filters: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Options by name of built-in filters. A group in which they leave nobody to train on is dropped when it is complete (`filtered:<name>`)."""
    capacity_rollouts: Mapping[str, int] = field(default_factory=dict)
    """Rollouts that may be ready at once, by environment. When a group becomes ready above it, the oldest ready ones are dropped (`capacity`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A run that the buffer knows."""

    run: str
    laws: Laws
    opened_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldSlot:
    """A slot that a session held when it ended: the try that came to nothing."""

    group_id: str
    member: int
    retry: int
    claimed_at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRecord:
    """A worker that claims slots."""

    run: str
    session: str
    worker: str
    expires_at: float
    claims: int = 0
    """Number of its last claim, so that one that comes twice hands out nothing twice."""
    ended: bool = False
    ended_at: float | None = None
    reason: str | None = None
    """Why it ended: worker_lost or worker_left."""
    held: tuple[HeldSlot, ...] = ()
    """What it had claimed and not filled by then."""


Record = (
    RunRecord
    | GroupRecord
    | MemberRecord
    | RolloutRecord
    | AnnotationRecord
    | SessionRecord
    | TermRecord
    | Plan
    | Outcome
    | Version
    | CheckpointRecord
    | Payload
    | JournalEntry
    | ArchiveFile
    | Moved
    | LeaseRecord
    | ReaderRecord
    | ArrivedItem
    | SpentGroups
)
"""Anything a store keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Counts over all records of one environment and purpose, those of ended groups included."""

    groups: Mapping[tuple[GroupState, str | None], int] = field(default_factory=dict)
    """Groups by (state, reason); the reason is None but for dropped ones."""
    members: Mapping[tuple[MemberState, str | None], int] = field(default_factory=dict)
    """Members by (state, reason); the reason is None but for failed ones."""
    ready_groups: int = 0
    """Groups that ever became ready (`ready_at` is set), and their tokens: the running mean of a group's cost."""
    ready_tokens: int = 0
    dropped_longest: Mapping[str, int] = field(default_factory=dict)
    """Sum of `longest` over dropped groups, by reason: with the counts, it shows whether long replies are lost more often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All that the ledger holds in memory for one run."""

    run: RunRecord
    groups: tuple[GroupRecord, ...]
    """Groups that have not ended (neither spent nor dropped), by `order`."""
    members: tuple[MemberRecord, ...]
    """Slots of the open and complete ones among them, as they were kept last: see `all_filled`."""
    rollouts: tuple[RolloutRecord, ...]
    """Stored rollouts of the open and complete ones."""
    annotations: tuple[AnnotationRecord, ...]
    """Those of the open and complete ones."""
    sessions: tuple[SessionRecord, ...]
    """Those that have not ended."""
    term: TermRecord | None
    plans: tuple[Plan, ...]
    """Those from the newest kept checkpoint on, and the one before."""
    outcomes: tuple[Outcome, ...]
    """All of them, by update."""
    versions: tuple[Version, ...]
    """All of them, by number."""
    checkpoints: tuple[CheckpointRecord, ...]
    """Those that are kept, by update."""
    tallies: Mapping[tuple[str, Purpose], Tally]
    """By (environment, purpose)."""
    last_order: int
    """Largest `order` of any group so far, -1 if there is none."""
    last_ready_order: int
    """Largest `ready_order` of any group so far, -1 if there is none."""
    cursors: Mapping[str, tuple[int, int]]
    """For each group source (the part of the id before `/pass/index`), the largest (pass, index) that was opened."""
    leases: tuple[LeaseRecord, ...] = ()
    """Those that are taken, by id."""
    last_fence: int = 0
    """Largest `fence` of any lease so far, 0 if there is none."""
    readers: tuple[ReaderRecord, ...] = ()
    """All of them, by name."""
