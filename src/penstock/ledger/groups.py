"""A group's life up to the cut: opened against credits, completed by its members, made ready or dropped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter

from penstock.errors import ConflictError, InvalidError, LimitError
from penstock.ledger.book import Decision, Ledger, Past
from penstock.ledger.credits import estimate, fits
from penstock.ledger.selection import check_filter_laws, untrainable
from penstock.ledger.states import move_group, move_member
from penstock.ledger.trays import content_line
from penstock.types import (
    AnnotationRecord,
    GroupRecord,
    GroupState,
    Laws,
    MemberRecord,
    MemberState,
    Purpose,
    Record,
    RolloutRecord,
    RunRecord,
    Version,
)
from penstock.wire import check_id, digest


@dataclass(frozen=True, slots=True)
class Opened:
    """Answer to `open_group`."""

    group: GroupRecord
    created: bool
    """False if it was open before: the request came twice."""


def open_run(ledger: Ledger | None, run: str, laws: Laws, initial_digest: str, now: float) -> Decision[RunRecord]:
    """A run opens with version 0, the initial weights. Opened again it takes the new laws and must name the same weights."""
    check_laws(laws)
    if ledger is None:
        record = RunRecord(run=run, laws=laws, opened_at=now)
        return Decision(record, (record, Version(run=run, version=0, digest=initial_digest, live=True, recorded_at=now)))
    known = ledger.versions[0].digest
    if initial_digest != known:
        raise ConflictError(f"run {run} started from weights {known}, not from {initial_digest}; choose another name for a new run")
    for name in ("annotations", "min_group_size"):
        if getattr(laws, name) != getattr(ledger.laws, name) and ledger.groups:
            raise ConflictError(f"{name} cannot change while {len(ledger.groups)} groups are under way: they were judged by {getattr(ledger.laws, name)}")
    record = replace(ledger.run, laws=laws)
    return Decision(record, () if record == ledger.run else (record,))


def check_laws(laws: Laws) -> None:
    """Raise `InvalidError` for laws that nobody can keep."""
    least = {"max_lag": 0, "min_group_size": 1, "max_retries": 0, "max_reuse": 1, "credit_tokens": 1}
    for name, bound in least.items():
        if not bound <= getattr(laws, name) < 2**53:
            raise InvalidError(f"laws.{name}: must be {bound} or more, got {getattr(laws, name)}")
    if laws.credit_groups is not None and not 1 <= laws.credit_groups < 2**53:
        raise InvalidError(f"laws.credit_groups: must be 1 or more, got {laws.credit_groups}")
    for name in ("session_seconds", "term_seconds"):
        if not 0 < getattr(laws, name) < 1e9:
            raise InvalidError(f"laws.{name}: must be above 0, got {getattr(laws, name)}")
    for name in laws.annotations:
        # No annotation can have another name, and the groups would wait for ever.
        check_id(name, "laws.annotations")
    check_fractions(laws.fractions, "laws.fractions")
    check_filter_laws(laws.filters)
    for environment, rollouts in laws.capacity_rollouts.items():
        if not 1 <= rollouts < 2**53:
            raise InvalidError(f"laws.capacity_rollouts.{environment}: must be 1 or more, got {rollouts}")


def check_fractions(fractions: Mapping[str, float], field: str) -> None:
    """Raise `InvalidError` for shares that are not shares."""
    for environment, fraction in fractions.items():
        if not 0 <= fraction <= 1:
            raise InvalidError(f"{field}.{environment}: must be 0 to 1, got {fraction}")
    if sum(fractions.values()) > 1 + 1e-6:
        raise InvalidError(f"{field}: they add up to {sum(fractions.values()):g}, which is more than 1")


def open_group(
    ledger: Ledger,
    past: Past,
    *,
    group_id: str,
    environment: str,
    problem_id: str,
    purpose: Purpose,
    size: int,
    seed: int,
    first_estimate: int,
    now: float,
) -> Decision[Opened]:
    """Open a group and issue its members. Opening the same one again changes nothing.

    Raises `LimitError` while the environment has no credit left for a group to train on, `ConflictError` if the id means another group.
    """
    for field, value, least in (("size", size, 1), ("seed", seed, 0), ("first_estimate", first_estimate, 0)):
        if not least <= value < 2**63:
            raise InvalidError(f"{field}: must be {least} or more and fit in 63 bits, got {value}")
    known = ledger.find_group(past, group_id)
    if known is not None:
        if (known.environment, known.problem_id, known.purpose, known.size) != (environment, problem_id, purpose, size):
            raise ConflictError(f"group {group_id} is open for problem {known.problem_id} of {known.environment} with {known.size} members")
        return Decision(Opened(known, created=False))
    credit = 0
    if purpose is Purpose.TRAIN:
        credit = max(1, estimate(ledger, environment, first_estimate))
        if not fits(ledger, environment, credit):
            held = ledger.counts_of(environment, purpose)
            raise LimitError(
                f"no credit: {environment} has {held.held_groups} groups with {held.held_tokens} tokens under way, and the next needs about {credit}"
            )
    group = GroupRecord(
        run=ledger.run.run,
        id=group_id,
        environment=environment,
        problem_id=problem_id,
        purpose=purpose,
        size=size,
        seed=seed,
        state=GroupState.OPEN,
        order=ledger.last_order + 1,
        credit=credit,
        pending=size,
        opened_at=now,
    )
    members = tuple(MemberRecord(run=group.run, group_id=group_id, member=member) for member in range(size))
    return Decision(Opened(group, created=True), (group, *members))


def drop(ledger: Ledger, group: GroupRecord, reason: str, now: float) -> tuple[Record, ...]:
    """Records that end a group without training on it. Slots still pending fail with it; its credit is returned."""
    return dropped(group, ledger.members.get(group.id, ()), reason, now)


def drop_torn(ledger: Ledger, now: float) -> Decision[tuple[GroupRecord, ...]]:
    """End the groups that lost a slot, a rollout or their lease to damage: nobody can tell any more what they were to become, or whether they were used."""
    torn = [ledger.groups[group_id] for group_id in ledger.torn if group_id in ledger.groups]
    growing = (GroupState.OPEN, GroupState.COMPLETE)
    records = tuple(record for group in torn if group.state in growing or ledger.is_orphan(group) for record in drop(ledger, group, "damaged", now))
    return Decision(tuple(record for record in records if isinstance(record, GroupRecord)), records)


def dropped(group: GroupRecord, members: Iterable[MemberRecord], reason: str, now: float) -> tuple[*tuple[MemberRecord, ...], GroupRecord]:
    """As `drop`, for a group with these members."""
    pending = [member for member in members if member.state is MemberState.PENDING]
    failed = tuple(move_member(member, MemberState.FAILED, session=None, reason="group_dropped") for member in pending)
    return (*failed, move_group(group, GroupState.DROPPED, reason=reason, credit=0, pending=0, ended_at=now))


def settle(
    ledger: Ledger,
    group: GroupRecord,
    rollouts: Iterable[RolloutRecord],
    annotations: Iterable[AnnotationRecord],
    now: float,
    *,
    ready_order: int | None = None,
) -> GroupRecord:
    """The group after its members or annotations changed: unchanged while something is pending, else complete, ready or dropped.

    `ready_order` is the next number for one that becomes ready, where others have become so that the ledger does not know yet.
    """
    if group.pending:
        return group
    way, times = ((GroupState.COMPLETE,), {"completed_at": now}) if group.state is GroupState.OPEN else ((), {})
    if group.purpose is Purpose.TRAIN and group.usable < ledger.laws.min_group_size:
        return move_group(group, *way, GroupState.DROPPED, reason="too_few", credit=0, ended_at=now, **times)
    usable = sorted([rollout for rollout in rollouts if rollout.status.usable], key=attrgetter("member"))
    if group.purpose is Purpose.TRAIN and (reason := untrainable(ledger, usable)) is not None:
        # Before annotations are waited for: nobody should be at pains about a group that will not train.
        return move_group(group, *way, GroupState.DROPPED, reason=reason, credit=0, ended_at=now, **times)
    present = sorted(annotations, key=lambda found: (found.rollout_uid, found.name, -1 if found.step is None else found.step))
    if group.purpose is Purpose.TRAIN and not _annotated(usable, present, ledger.laws.annotations):
        return move_group(group, *way, **times)
    tokens = shared_tokens(usable)
    return move_group(
        group,
        *way,
        GroupState.READY,
        tokens=tokens,
        credit=tokens if group.purpose is Purpose.TRAIN else 0,
        digest=content_digest(usable, present),
        version_tokens=tokens_by_version(usable),
        ready_at=now,
        ready_order=ledger.last_ready_order + 1 if ready_order is None else ready_order,
        **times,
    )


def shared_tokens(rollouts: Iterable[RolloutRecord]) -> int:
    """Tokens to compute for a group when a prefix that several members have in common is computed once."""
    tokens, seen = 0, set()
    for rollout in rollouts:
        tokens += rollout.tokens - (rollout.prefix_tokens if rollout.prefix_digest in seen else 0)
        seen.add(rollout.prefix_digest)
    return tokens


def tokens_by_version(rollouts: Iterable[RolloutRecord]) -> tuple[tuple[int, int], ...]:
    """(version, sampled tokens), ascending."""
    tokens: dict[int, int] = {}
    for rollout in rollouts:
        for version, count in zip(rollout.versions, rollout.version_tokens, strict=False):
            tokens[version] = tokens.get(version, 0) + count
    return tuple(sorted(tokens.items()))


def content_digest(rollouts: Iterable[RolloutRecord], annotations: Iterable[AnnotationRecord]) -> str:
    """Digest of what a group holds; both must be sorted."""
    lines = [content_line(rollout) for rollout in rollouts]
    lines += [f"{found.rollout_uid} {found.name} {found.step} {found.digest}" for found in annotations]
    return digest("\n".join(lines).encode())


def _annotated(rollouts: Iterable[RolloutRecord], annotations: Iterable[AnnotationRecord], names: tuple[str, ...]) -> bool:
    present = {(found.rollout_uid, found.name) for found in annotations}
    return all((rollout.uid, name) in present for rollout in rollouts for name in names)
