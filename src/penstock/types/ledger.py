"""What the buffer keeps: the durable records, and the states they go through.

Every record belongs to one run, has a key inside it, and is stored whole; writing a record with the same key replaces the older one.
`Payload` and `JournalEntry` are written once and never replaced.

    run        RunRecord            laws and identity of a run
    source/..  GroupRecord          one group, its state, its credit, what it was cut into
    (g, m)     MemberRecord         one slot of a group
    uid        RolloutRecord        one stored try at a slot; its bytes are the Payload of the same uid
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
from enum import StrEnum
from typing import Literal

from penstock.types.episodes import Purpose, RolloutStatus


class GroupState(StrEnum):
    """`open -> complete -> ready -> bound -> spent`, or `dropped` with a reason from any state before spent."""

    OPEN = "open"
    """Slots are pending."""
    COMPLETE = "complete"
    """No slot is pending; annotations are being waited for."""
    READY = "ready"
    """May be cut."""
    BOUND = "bound"
    """In a plan, or under a lease."""
    SPENT = "spent"
    """A kept checkpoint contains its update, or an outside consumer has settled its lease."""
    DROPPED = "dropped"
    """Will never be trained on; `reason` says why."""


class MemberState(StrEnum):
    """State of a slot: members issued = pending + accepted + failed."""

    PENDING = "pending"
    ACCEPTED = "accepted"
    FAILED = "failed"


class LeaseState(StrEnum):
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
class Arrival:
    """What is known of a group whose members are issued as they arrive: its items' rewards, so that a reader can choose without their bytes.

    Empty while the group is open; filled in when it is complete.
    """

    instance: str
    """The instance id as it was written."""
    rewards: tuple[float | None, ...] = ()
    """By member. None: the item has none."""
    refused: tuple[int, ...] = ()
    """Members that the default filter does not keep."""
    num_bytes: int = 0
    """Of all items."""
    timed_out: bool = False
    """Closed by its timeout, not by its last member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """One group."""

    run: str
    id: str
    environment: str
    problem_id: str
    purpose: Purpose
    size: int
    """Slots."""
    seed: int
    """Slot m of retry r samples with a seed derived from this one."""
    state: GroupState
    order: int
    """When it was opened: a number that only grows inside a run."""
    credit: int = 0
    """Tokens held of the environment's credits: an estimate until the group is ready, then exact; 0 once returned."""
    tokens: int = 0
    """Tokens of all usable members after prefix sharing; 0 until ready."""
    longest: int = 0
    """Sampled tokens of the longest stored member, for counts of what was dropped by length."""
    oldest_version: int | None = None
    """Smallest version among the sampled tokens of the usable members so far."""
    newest_version: int | None = None
    usable: int = 0
    """Members that were accepted so far."""
    pending: int = 0
    """Members that are still awaited."""
    digest: str = ""
    """Over uid and digest of each usable member and annotation; set when ready."""
    updates: tuple[int, ...] = ()
    """Updates that it was cut into and that still count."""
    reason: str | None = None
    """Why it was dropped."""
    opened_at: float = 0.0
    completed_at: float | None = None
    ready_at: float | None = None
    bound_at: float | None = None
    ended_at: float | None = None
    ready_order: int | None = None
    """When it became ready: a number that only grows inside a run."""
    version_tokens: tuple[tuple[int, int], ...] = ()
    """(version, sampled tokens of the usable members), ascending; set when ready."""
    archive: str | None = None
    """The archive file that holds the bytes of its rollouts, once they have left the store."""
    lease: str | None = None
    """The lease that binds it, or under which it was spent."""
    arrival: Arrival | None = None
    """Set if its members are issued as they arrive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRecord:
    """One slot of a group."""

    run: str
    group_id: str
    member: int
    state: MemberState = MemberState.PENDING
    retry: int = 0
    """The try that a write must name. Grows whenever the slot is handed out again, so that an older worker is fenced."""
    failures: int = 0
    """Tries that ended in an infrastructure failure or with a lost worker; bounded by `Laws.max_retries`."""
    session: str | None = None
    """Worker session that has claimed the slot."""
    claim: int = 0
    """Which claim of the session handed it out."""
    claimed_at: float | None = None
    uid: str | None = None
    """The rollout that filled the slot, or the last one that failed it."""
    reason: str | None = None
    """Why it failed, or why the last try did."""
    environment: str = ""
    """Of a member that was issued as it arrived: its group may have ended before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRecord:
    """What the ledger needs to know about a stored rollout without opening its bytes."""

    run: str
    uid: str
    group_id: str
    member: int
    retry: int
    status: RolloutStatus
    digest: str
    """xxh3-128 in hex of the payload as accepted."""
    environment: str = ""
    """As the rollout says, and so must its group; empty: it does not say."""
    problem_id: str = ""
    """Likewise."""
    reward: float | None = None
    tokens: int = 0
    """Tokens of its kept paths, each segment once."""
    sampled_tokens: int = 0
    prefix_tokens: int = 0
    """Length of what stands before the first sampled token; shared with members of the same `prefix_digest`."""
    prefix_digest: str = ""
    oldest_version: int | None = None
    newest_version: int | None = None
    versions: tuple[int, ...] = ()
    """Distinct versions of the sampled tokens of our policy, ascending."""
    version_tokens: tuple[int, ...] = ()
    """Sampled tokens of each of `versions`."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """Named parts of the reward."""
    failure: str | None = None
    stale: bool = False
    """Came too late for `max_lag`: stored, not trained on."""
    stored_at: float = 0.0
    form: Literal["rollout", "item"] = "rollout"
    """What the bytes are: a rollout of ours, or an item of the compatible routes, which has no token ids that we could train on."""
    num_bytes: int = 0
    """Of an item."""
    kept: bool = True
    """Whether the default filter keeps the item."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotationRecord:
    """Says that an annotation is stored; its bytes are the payload `uid`."""

    run: str
    rollout_uid: str
    group_id: str
    name: str
    step: int | None
    uid: str
    digest: str
    failed: str | None = None
    stored_at: float = 0.0


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedGroup:
    """A group in a plan, with the content it must still have when it is fetched."""

    id: str
    digest: str


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
    """Which groups an outside consumer wants. Without `groups` and `items`: all that are ready."""

    groups: int | None = None
    """At most so many groups."""
    items: int | None = None
    """The fewest whole groups that hold so many usable members; none at all while there are not so many."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """Bytes as they were accepted. Never rewritten."""

    run: str
    uid: str
    content_type: Literal["json", "msgpack"]
    body: bytes
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveFile:
    """A Parquet file with the rollouts of ended groups. It exists for readers once this record is durable, together with the `Moved` of each of its bytes."""

    run: str
    name: str
    """Path of the file from the directory of the store."""
    number: int
    """From 0, without gaps."""
    digest: str
    """xxh3-128 in hex of the whole file."""
    size_bytes: int
    rows: int
    """Rollouts in it."""
    groups: int
    newest_update: int | None = None
    """Last update that a group in it was planned for; None if there is none."""
    newest_ended_at: float = 0.0
    """When the last of its groups ended."""
    written_at: float = 0.0
    retired_at: float | None = None
    """When retention gave it up: the file is gone, the records of its rollouts stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """The bytes of a stored payload are in an archive file now, and need not be kept here."""

    run: str
    uid: str
    content_type: Literal["json", "msgpack"]
    digest: str
    file: str
    """Name of the `ArchiveFile`."""
    row: int
    """Of the rollout in the file, from 0; an annotation is in the row of its rollout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """One event of an episode that is still going on: appended once, read in order, so that the episode can continue elsewhere."""

    run: str
    episode: str
    index: int
    """From 0, without gaps. The same index with the same body again changes nothing."""
    body: bytes


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
    """Slots of the open and complete ones among them."""
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
