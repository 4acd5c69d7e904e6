"""The cut: which ready groups make up one update. One decision, one durable plan; asking again gives the same plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from penstock.batching.budget import Candidate, Choice, Short, choose
from penstock.errors import ConflictError, InvalidError
from penstock.ledger.book import Decision, Ledger, Past
from penstock.ledger.credits import exhausted
from penstock.ledger.groups import check_fractions, drop
from penstock.ledger.queues import ReadyQueue
from penstock.ledger.selection import filtered_so_far, strictest_lag
from penstock.ledger.states import move_group
from penstock.ledger.terms import check_term
from penstock.types import CutRequest, GroupRecord, GroupState, Plan, PlannedGroup, Purpose, Record


@dataclass(frozen=True, slots=True)
class Wait:
    """There is no batch yet. Ask again later; `reason` says what is missing."""

    reason: str
    environment: str | None = None


def cut(ledger: Ledger, past: Past, update: int, term: int, request: CutRequest, now: float) -> Decision[Plan | Wait]:
    """The plan of `update`: the one that exists, or a new one that binds the chosen groups.

    Groups that have gone stale or could never fit are dropped on the way, also when the answer is `Wait`.
    """
    check_term(ledger, term)
    known = ledger.plans.get(update) or past.plan(ledger.run.run, update)
    if known is not None and not known.void:
        return Decision(known)
    if update != ledger.next_update:
        raise ConflictError(f"update {update} cannot be cut before update {ledger.next_update}")
    _check_request(request)
    endangered = _endangered(ledger)
    if endangered is not None:
        return Decision(Wait(f"group {endangered.id} would be stale at the next cut", endangered.environment))
    removed = stale_groups(ledger, now)
    choice = _choose(ledger, update, request, first=_first_fresh(ledger))
    removed += [found for group_id in choice.too_big for found in drop(ledger, ledger.groups[group_id], "over_budget", now)]
    if isinstance(choice, Short):
        return Decision(Wait(_shortage(ledger, choice.environment), choice.environment), tuple(removed))
    groups = [ledger.groups[group_id] for group_id in choice.ids]
    plan = Plan(
        run=ledger.run.run,
        update=update,
        term=term,
        groups=tuple(PlannedGroup(id=group.id, digest=group.digest) for group in groups),
        newest_version=ledger.newest_version,
        tokens=sum(group.tokens for group in groups),
        request=request,
        carry=choice.carry,
        cut_at=now,
    )
    bound = [move_group(group, GroupState.BOUND, updates=(*group.updates, update), bound_at=now) for group in groups]
    return Decision(plan, (*removed, *bound, plan))


def _check_request(request: CutRequest) -> None:
    if (request.budget_tokens is None) == (request.groups_per_update is None):
        raise InvalidError("a cut is asked for by budget_tokens or by groups_per_update: one of them")
    size = request.budget_tokens if request.budget_tokens is not None else request.groups_per_update
    if size is None or not 1 <= size < 2**53:
        raise InvalidError(f"the size of a cut must be 1 or more, got {size}")
    check_fractions(request.fractions, "fractions")


def _first_fresh(ledger: Ledger) -> int:
    """Smallest version that may still be trained on."""
    return ledger.newest_version - strictest_lag(ledger.laws)


def _shortage(ledger: Ledger, environment: str | None) -> str:
    """Why there is nothing to cut."""
    bare = sum(ready.first_from(0) for name, ready in ledger.ready.items() if environment in (None, name))
    if not bare:
        filtered = filtered_so_far(ledger, environment)
        return f"no ready group; so far filters have dropped {filtered}" if filtered else "no ready group"
    return (
        f"no ready group but {bare} without token ids and versions, which came by the compatible routes: an outside trainer can read them, our learner cannot"
    )


def stale_groups(ledger: Ledger, now: float) -> list[Record]:
    """Records for ready groups that are too old to be cut or leased. One that has trained before is not dropped: it is done."""
    records: list[Record] = []
    for ready in ledger.ready.values():
        for _, _, group_id in ready[ready.first_from(0) : ready.first_from(_first_fresh(ledger))]:
            group = ledger.groups[group_id]
            records += [done(ledger, group, now)] if group.updates else drop(ledger, group, "stale", now)
    return records


def done(ledger: Ledger, group: GroupRecord, now: float) -> GroupRecord:
    """A group that has trained and will not be cut again: spent, or waiting for the checkpoint that makes it so."""
    group = move_group(group, GroupState.BOUND)
    if all(update < ledger.newest_checkpoint for update in group.updates):
        return move_group(group, GroupState.SPENT, credit=0, ended_at=now)
    return group


def _endangered(ledger: Ledger) -> GroupRecord | None:
    """An open group that the next version makes stale, if the laws say to wait for such."""
    if ledger.laws.endangered != "wait":
        return None
    for group in ledger.groups.values():
        unfinished = group.state in (GroupState.OPEN, GroupState.COMPLETE) and group.purpose is Purpose.TRAIN
        if unfinished and group.oldest_version is not None and group.oldest_version <= _first_fresh(ledger):
            return group
    return None


def _choose(ledger: Ledger, update: int, request: CutRequest, first: int) -> Choice | Short:
    previous = ledger.plans.get(update - 1)
    environments = sorted({name for name, purpose in ledger.counts if purpose is Purpose.TRAIN} | set(request.fractions or ledger.laws.fractions))
    return choose(
        {name: _queue(ledger, name, request, first) for name in environments},
        budget_tokens=request.budget_tokens,
        num_groups=request.groups_per_update,
        fractions=request.fractions or ledger.laws.fractions,
        unallocated=request.unallocated,
        spill=request.short == "spill" and request.waited_seconds >= request.spill_after_seconds,
        exhausted=[name for name in environments if exhausted(ledger, name)],
        carry=_carry(previous, request),
    )


def _carry(previous: Plan | None, request: CutRequest) -> Mapping[str, float]:
    """What the last cut left owing, if it was counted in the same unit."""
    if previous is None or (previous.request.budget_tokens is None) != (request.budget_tokens is None):
        return {}
    return previous.carry


def _queue(ledger: Ledger, environment: str, request: CutRequest, first: int) -> Iterator[Candidate]:
    """Fresh ready groups of an environment in the order they are taken; lazy, so that a long queue costs nothing."""
    ready = ledger.ready.get(environment) or ReadyQueue()
    # Groups without versions stand before all others: nobody knows what sampled them, so they are not for our learner.
    start = ready.first_from(max(first, 0))
    places = range(start, len(ready)) if request.order == "oldest" else range(len(ready) - 1, start - 1, -1)
    for place in places:
        group = ledger.groups[ready[place][2]]
        yield Candidate(id=group.id, tokens=group.tokens, age=(group.newest_version or 0, group.ready_order or 0))
