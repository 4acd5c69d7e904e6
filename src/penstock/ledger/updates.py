"""After the arithmetic: outcomes, versions, publishing and checkpoints. Everything here is asked for under a term."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from penstock.errors import ConflictError, InvalidError, UnknownError
from penstock.ledger.book import Decision, Ledger, Past
from penstock.ledger.states import move_group
from penstock.ledger.terms import check_term
from penstock.types import CheckpointRecord, GroupRecord, GroupState, Outcome, Plan, Record, Version


@dataclass(frozen=True, slots=True)
class Recorded:
    """Answer to `record`."""

    outcome: Outcome
    replayed: bool = False
    """The outcome was there before: this was a replay, or a request that came twice."""
    equal: bool = True
    """Whether a replay gave what was recorded."""


def record(ledger: Ledger, past: Past, update: int, term: int, now: float, *, digest: str = "", skipped: str | None = None) -> Decision[Recorded]:
    """Make the outcome of a plan durable: `digest` names the new weights, or `skipped` says why there are none.

    An applied outcome allocates the next version. An outcome that exists is compared, never changed.
    """
    check_term(ledger, term)
    if digest and skipped is not None:
        raise InvalidError("skipped: an update that was skipped has no weights to name in digest; send one of the two")
    plan = ledger.plans.get(update) or past.plan(ledger.run.run, update)
    if plan is None or plan.void:
        raise UnknownError(f"update {update} was never cut")
    known = ledger.outcomes.get(update)
    if known is not None:
        return Decision(Recorded(known, replayed=True, equal=(known.digest, known.reason) == (digest, skipped)))
    if update != ledger.next_update:
        raise ConflictError(f"update {update} cannot be recorded before update {ledger.next_update}")
    if skipped is not None:
        outcome = Outcome(run=ledger.run.run, update=update, kind="skipped", reason=skipped, recorded_at=now)
        return Decision(Recorded(outcome), (outcome, *_skip_groups(ledger, plan, skipped, now)))
    if not digest:
        raise InvalidError("digest: an applied update must name its weights")
    version = ledger.newest_version + 1
    outcome = Outcome(run=ledger.run.run, update=update, kind="applied", version=version, digest=digest, recorded_at=now)
    named = Version(run=ledger.run.run, version=version, digest=digest, update=update, recorded_at=now)
    return Decision(Recorded(outcome), (outcome, named, *_offer_again(ledger, plan)))


def fork(ledger: Ledger, update: int, term: int, digest: str, now: float) -> Decision[Version]:
    """Give replayed weights that differ from the recorded ones a version of their own; the newest, from which the run goes on."""
    check_term(ledger, term)
    newest = ledger.versions[ledger.newest_version]
    if newest.fork and newest.digest == digest and newest.update == update:
        return Decision(newest)
    if update != ledger.next_update - 1:
        raise ConflictError(f"only the last recorded update, {ledger.next_update - 1}, can fork, not {update}")
    version = Version(run=ledger.run.run, version=newest.version + 1, digest=digest, update=update, fork=True, recorded_at=now)
    return Decision(version, (version,))


def publish(ledger: Ledger, version: int, term: int) -> Decision[Version]:
    """Every server was told of `version`: it is live, and the groups that made it give their credit back. Again is fine."""
    check_term(ledger, term)
    known = ledger.versions.get(version)
    if known is None:
        raise UnknownError(f"version {version} was never recorded; the newest is {ledger.newest_version}")
    if known.live:
        return Decision(known)
    live = [replace(earlier, live=True) for earlier in ledger.versions.values() if earlier.version <= version and not earlier.live]
    # A version that a recut has undone may name an update that is under way again: only standing outcomes give credit back.
    standing = {outcome.version: outcome.update for outcome in ledger.outcomes.values()}
    updates = {standing[earlier.version] for earlier in live if earlier.version in standing}
    credits = [replace(group, credit=0) for group in _planned(ledger, updates) if group.credit]
    return Decision(replace(known, live=True), (*live, *credits))


def keep(ledger: Ledger, past: Past, update: int, digest: str, term: int, now: float) -> Decision[CheckpointRecord]:
    """Register the checkpoint `update_N`, which holds updates 0 to N-1; their groups are spent. Makes it visible to resume.

    One that is older than the newest and not offered is not offered now either (the reply has `kept` False): the request is late, and what it
    names may have been retired and deleted.
    """
    check_term(ledger, term)
    _check_update(update)
    if update > ledger.next_update:
        raise ConflictError(f"checkpoint update_{update} holds updates that have no outcome; the next is {ledger.next_update}")
    known = ledger.checkpoints.get(update)
    if known is not None and known.digest == digest:
        return Decision(known)
    if known is not None and known.term == term:
        raise ConflictError(f"checkpoint update_{update} was kept with digest {known.digest}, not {digest}")
    checkpoint = CheckpointRecord(run=ledger.run.run, update=update, digest=digest, term=term, kept_at=now)
    if known is None and update < ledger.newest_checkpoint:
        return Decision(replace(checkpoint, kept=False))
    spent: dict[str, GroupRecord] = {}
    for earlier in range(ledger.newest_checkpoint, update):
        for group in _planned(ledger, {earlier}):
            if group.state is GroupState.BOUND and all(used < update for used in group.updates):
                spent[group.id] = move_group(group, GroupState.SPENT, credit=0, ended_at=now)
    return Decision(checkpoint, (*spent.values(), checkpoint))


def retire(ledger: Ledger, update: int, term: int) -> Decision[CheckpointRecord]:
    """Resume may no longer start from `update_N`. The newest one stays. One that was retired before is retired still."""
    check_term(ledger, term)
    _check_update(update)
    known = ledger.checkpoints.get(update)
    if known is None and update < ledger.newest_checkpoint:
        return Decision(CheckpointRecord(run=ledger.run.run, update=update, digest="", term=term, kept=False))
    if known is None:
        raise UnknownError(f"no kept checkpoint update_{update}; there are {sorted(ledger.checkpoints)}")
    if update == ledger.newest_checkpoint:
        raise ConflictError(f"checkpoint update_{update} is the newest and must be kept")
    retired = replace(known, kept=False)
    return Decision(retired, (retired,))


def _check_update(update: int) -> None:
    if update < 0:
        raise InvalidError(f"update: counts from 0, got {update}")


def _planned(ledger: Ledger, updates: set[int]) -> Iterator[GroupRecord]:
    """Groups under way that were cut into one of `updates`, each once."""
    seen: set[str] = set()
    for update in sorted(updates):
        plan = ledger.plans.get(update)
        for planned in plan.groups if plan else ():
            group = ledger.groups.get(planned.id)
            if group is not None and group.id not in seen:
                seen.add(group.id)
                yield group


def _skip_groups(ledger: Ledger, plan: Plan, reason: str, now: float) -> Iterator[Record]:
    """Groups of a skipped plan are dropped; one that trained an earlier update waits for its checkpoint instead."""
    for group in _planned(ledger, {plan.update}):
        earlier = tuple(update for update in group.updates if update != plan.update)
        if earlier:
            yield replace(group, updates=earlier, credit=0)
        else:
            yield move_group(group, GroupState.DROPPED, reason=f"skipped:{reason}", credit=0, updates=(), ended_at=now)


def _offer_again(ledger: Ledger, plan: Plan) -> Iterator[Record]:
    """Groups that may be cut once more."""
    for group in _planned(ledger, {plan.update}):
        if len(group.updates) < ledger.laws.max_reuse:
            yield move_group(group, GroupState.READY)
