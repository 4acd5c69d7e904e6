"""What goes over the wire between the buffer's service and its clients, besides rollouts: bodies of requests and replies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from penstock.ledger import Resume
from penstock.types import (
    AnnotationRecord,
    CheckpointRecord,
    CutRequest,
    GroupRecord,
    Json,
    Laws,
    LeaseRecord,
    LeaseRequest,
    MemberRecord,
    Outcome,
    Plan,
    Purpose,
    RolloutRecord,
    TermRecord,
    Version,
)
from penstock.types.frozen import quickly_made
from penstock.wire.refusals import ErrorFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRun:
    """Open a run, or open it again."""

    laws: Laws
    initial_digest: str
    """Digest of the weights that version 0 names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentStatus:
    """How an environment stands."""

    credit_tokens: int
    held_tokens: int
    mean_group_tokens: float | None
    groups: Mapping[str, int]
    """Training groups by state; dropped ones as `dropped(reason)`."""
    members: Mapping[str, int]
    """Their members by state; failed ones as `failed(reason)`."""
    mean_dropped_longest: Mapping[str, float] = field(default_factory=dict)
    """Sampled tokens of the longest member of dropped groups, by reason: shows whether long replies are lost more often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """How a run stands."""

    run: str
    laws: Laws
    newest: Version
    """Newest recorded weights: what a server should serve."""
    live_version: int
    """Newest version that every server was told of."""
    next_update: int
    """First update without an outcome."""
    term: TermRecord | None
    checkpoints: tuple[CheckpointRecord, ...]
    cursors: Mapping[str, tuple[int, int]]
    """Last (pass, index) opened, by group source."""
    environments: Mapping[str, EnvironmentStatus]
    imbalance: int
    """Groups, members and credits that do not add up. 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenGroup:
    """One group to open."""

    id: str
    environment: str
    problem_id: str
    size: int
    seed: int = 0
    first_estimate: int = 1
    """Tokens that the group may cost, until the buffer knows better: members x (prompt + max_tokens)."""
    purpose: Purpose = Purpose.TRAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenGroups:
    """Groups to open, in order; the first that finds no credit ends the request."""

    groups: tuple[OpenGroup, ...]
    wait_seconds: float = 0.0
    """How long to wait for credit if there is none even for the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsOpened:
    """How many of them are open now, counted from the first."""

    opened: int
    created: int
    """How many of those were not open before."""
    waiting: str | None = None
    """What the next one waits for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSession:
    """A worker introduces itself."""

    session: str
    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A worker asks for slots, and is ready to wait for the first."""

    count: int
    environments: tuple[str, ...] | None = None
    wait_seconds: float = 0.0
    number: int | None = None
    """Counts the claims of the session from 1: asked again under the same number, the same slots are given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedSlot:
    """A slot to fill."""

    group_id: str
    environment: str
    problem_id: str
    purpose: Purpose
    member: int
    retry: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """Slots that now belong to the session."""

    slots: tuple[ClaimedSlot, ...]


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What became of one written rollout."""

    uid: str | None
    """None if the rollout could not even be read."""
    digest: str = ""
    """Of the bytes as stored."""
    duplicate: bool = False
    stale: bool = False
    """Stored, but too old to be trained on; its group was dropped."""
    code: str | None = None
    """Why it was refused, for machines."""
    message: str | None = None
    """Why it was refused, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenAll:
    """One answer for each rollout, in order."""

    rollouts: tuple[Written, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenNone:
    """Every rollout was refused: why the first was, and one answer for each."""

    error: ErrorFacts
    rollouts: tuple[Written, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeTerm:
    """A learner begins its life."""

    owner: str
    checkpoint: int
    resume: Resume = "replay"
    replaces: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnderTerm:
    """A request of the learner that has nothing else to say."""

    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CutBody:
    """Ask for the plan of an update, and wait for it."""

    term: int
    request: CutRequest
    wait_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CutReply:
    """The plan, or what is missing."""

    plan: Plan | None = None
    outcome: Outcome | None = None
    """What came of the plan before, if this is a replay."""
    waiting: str | None = None
    environment: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordBody:
    """What came of a plan: a digest of new weights, or the reason for a skip."""

    term: int
    digest: str = ""
    skipped: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordReply:
    """The outcome that stands."""

    outcome: Outcome
    replayed: bool
    equal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DigestBody:
    """Something with a digest, under a term: a fork or a checkpoint."""

    term: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentLedger:
    """Where the groups and members of one environment and purpose are. Each adds up to what was ever issued."""

    environment: str
    purpose: Purpose
    groups: Mapping[str, int]
    """By state; dropped ones as `dropped(reason)`."""
    members: Mapping[str, int]
    """By state; failed ones as `failed(reason)`."""
    opened: int
    issued: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerReply:
    """Conservation, by environment and purpose."""

    run: str
    balances: tuple[EnvironmentLedger, ...]
    imbalance: int
    """What does not add up. 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentStatistics:
    """How groups of an environment fare, over the whole run."""

    environment: str
    purpose: Purpose
    opened: int
    under_way: int
    """Neither spent nor dropped."""
    became_ready: int
    mean_ready_tokens: float | None
    """Tokens of a group that became ready; None before the first."""
    dropped: Mapping[str, int]
    """By reason."""
    mean_dropped_longest: Mapping[str, float]
    """Sampled tokens of the longest member of what was dropped, by reason: shows whether long replies are lost more often."""
    oldest_open_seconds: float | None
    """Age of the oldest group that is not complete."""
    oldest_ready_seconds: float | None
    """How long the group that waits longest has been ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """How a run fares."""

    run: str
    environments: tuple[EnvironmentStatistics, ...]
    sessions: int
    """Workers that are heard of."""
    work_missing: int
    """Rollouts that wait for an annotation."""
    newest_version: int
    next_update: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeLease:
    """An outside consumer asks for groups, and is ready to wait for them."""

    lease: str
    """An id that the consumer makes up: asking again under it gives the same groups."""
    consumer: str
    request: LeaseRequest = field(default_factory=LeaseRequest)
    wait_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseReply:
    """The lease, or what is missing."""

    lease: LeaseRecord | None = None
    waiting: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewLease:
    """A consumer is still there."""

    consumer: str
    seconds: float | None = None
    """How long the lease lasts from now on; null: as long as before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedGroup:
    """A group as JSON: its usable members by slot, and what was found out about them."""

    id: str
    group: GroupRecord | None
    """Null if its record is damaged."""
    rollouts: tuple[Json, ...]
    annotations: tuple[Json, ...]
    damaged: str | None = None
    """Why its content cannot be had: damaged, or given up by retention. Then there is none, and the other groups of the lease are whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeWork:
    """Ask for rollouts to annotate, and wait for the first."""

    lease: str
    """A name that the consumer makes up: asking again under it gives the same items."""
    consumer: str
    count: int = 1
    names: tuple[str, ...] | None = None
    """Annotations that the consumer can make; null: any that the laws name."""
    environments: tuple[str, ...] | None = None
    seconds: float = 60.0
    """How long the lease lasts, and is renewed for."""
    wait_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who speaks about a lease."""

    consumer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """Whether anything was given back; false if it had ended before."""

    released: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """A sign of life."""

    live: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """Names of the runs."""

    runs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """Weights that were recorded, by number."""

    versions: tuple[Version, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotationStored:
    """An annotation is stored."""

    uid: str
    duplicate: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalLength:
    """How many entries the journal has."""

    entries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """A group with all records that belong to it."""

    group: GroupRecord
    members: tuple[MemberRecord, ...]
    rollouts: tuple[RolloutRecord, ...]
    annotations: tuple[AnnotationRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A server's answer to `/readyz`."""

    ready: bool
    reason: str = ""
    details: Mapping[str, Literal["ok", "failed"]] = field(default_factory=dict)
