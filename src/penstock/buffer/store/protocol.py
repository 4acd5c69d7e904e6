"""What the buffer asks of a store. A store knows records and durability, and nothing of the laws."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

from penstock.types import (
    AnnotationRecord,
    CheckpointRecord,
    GroupRecord,
    GroupState,
    JournalEntry,
    MemberRecord,
    MemberState,
    Outcome,
    Payload,
    Plan,
    Purpose,
    Record,
    RolloutRecord,
    RunRecord,
    SessionRecord,
    TermRecord,
    Version,
)


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
    """Those of the complete ones."""
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


class Store(Protocol):
    """Keeps records of any number of runs.

    `submit` is ordered: what was submitted earlier is durable no later. Look-ups see everything that was submitted, durable or not, so that the
    caller's next decision stands on its last one; only a resolved future may be told to anybody else.
    """

    def submit(self, records: Sequence[Record]) -> Future[None]:
        """Write all of `records`, atomically. The future resolves when they are on disk, or fails with `StoreError`.

        After a failure every later submit fails too until `reopen`; what was acknowledged before stays readable.
        """

    def reopen(self) -> None:
        """Forget everything that is not durable and start again from disk. Raises `StoreError` if the disk still refuses."""

    def runs(self) -> tuple[RunRecord, ...]:
        """All runs, by name."""

    def load(self, run: str) -> Snapshot | None:
        """What the ledger needs to go on with `run`; None if there is no such run."""

    def group(self, run: str, group_id: str) -> GroupRecord | None: ...

    def members(self, run: str, group_id: str) -> tuple[MemberRecord, ...]:
        """Slots of a group, by number."""

    def rollout(self, run: str, uid: str) -> RolloutRecord | None: ...

    def rollouts(self, run: str, group_id: str) -> tuple[RolloutRecord, ...]:
        """Every stored try of a group, by (member, retry)."""

    def annotations(self, run: str, group_id: str) -> tuple[AnnotationRecord, ...]:
        """By (rollout, name, step)."""

    def plan(self, run: str, update: int) -> Plan | None: ...

    def payload(self, run: str, uid: str) -> Payload:
        """The bytes of a rollout or annotation. Raises `UnknownError`, or `CorruptError` if they fail their checksum."""

    def journal(self, run: str, episode: str) -> tuple[JournalEntry, ...]:
        """Entries of an episode, by index."""

    def scan_groups(self, run: str) -> Iterator[GroupRecord]:
        """All groups of a run, by `order`, for tools that reconcile. Durable ones only."""

    def scan_rollouts(self, run: str) -> Iterator[RolloutRecord]:
        """All stored rollouts of a run, by uid. Durable ones only."""

    def corrupt(self) -> tuple[str, ...]:
        """One sentence for each record that was found to fail its checksum, and where it was set aside."""

    def close(self) -> None:
        """Make durable what was submitted, then let go of the files."""
