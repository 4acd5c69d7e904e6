"""Whole groups for outside consumers, for a time: taken, renewed, settled or given back. A consumer that is gone loses them, and is fenced.

A leased group is bound like one in a plan, so neither can have what the other has. Only groups that were never in a plan can be leased: those
that were belong to the learner until a checkpoint holds their update.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from penstock.errors import FencedError, ForbiddenError, InvalidError, UnknownError
from penstock.ledger.book import Decision, Ledger, Past
from penstock.ledger.cut import Wait, stale_groups
from penstock.ledger.queues import ReadyKey
from penstock.ledger.states import move_group
from penstock.types import GroupRecord, GroupState, LeaseRecord, LeaseRequest, LeaseState, PlannedGroup, Record

MOST_GROUPS = 4096
"""Groups of one lease: it is taken, settled and given back at once, and others wait meanwhile."""
LONGEST_SECONDS = 86_400.0
"""A lease lasts at most a day without being renewed."""


def take_lease(ledger: Ledger, past: Past, lease: str, consumer: str, request: LeaseRequest, now: float) -> Decision[LeaseRecord | Wait]:
    """Bind the groups that `request` asks for to the lease `lease`, or say what is missing.

    The caller makes up the id; the same one again gives the same groups, whatever is asked for. Refused: the id of somebody else's lease, and
    one that was given back or has expired, whose groups may be others' by now. Groups that have gone stale are dropped on the way. `InvalidError` if
    the items that are asked for are in more groups than one lease may have.
    """
    known = find_lease(ledger, past, lease)
    if known is not None:
        _check_owner(known, consumer)
        if known.state not in (LeaseState.TAKEN, LeaseState.SETTLED):
            raise FencedError(f"lease {lease} is {known.state}; take another under a new id")
        return Decision(known)
    check_request(request)
    removed = stale_groups(ledger, now)
    gone = {record.id for record in removed if isinstance(record, GroupRecord)}
    groups = _chosen(request, (group for group in leasable(ledger, request) if group.id not in gone))
    if isinstance(groups, Wait):
        return Decision(groups, tuple(removed))
    record = new_lease(ledger, lease, consumer, groups, request.seconds, now)
    bound = [move_group(group, GroupState.BOUND, bound_at=now, lease=lease) for group in groups]
    return Decision(record, (*removed, *bound, record))


def renew_lease(ledger: Ledger, past: Past, lease: str, consumer: str, now: float, *, seconds: float | None = None) -> Decision[LeaseRecord]:
    """The consumer is alive; from now on the lease lasts `seconds`, or as long as it did. Raises `FencedError` once the lease is over."""
    known = _owned(ledger, past, lease, consumer)
    if known.state is not LeaseState.TAKEN:
        raise _over(known)
    lasts = known.seconds if seconds is None else _check_seconds(seconds)
    renewed = replace(known, seconds=lasts, expires_at=now + lasts)
    return Decision(renewed, (renewed,))


def settle_lease(ledger: Ledger, past: Past, lease: str, consumer: str, now: float) -> Decision[LeaseRecord]:
    """The consumer has used the groups: they are spent. Again is fine; refused with `FencedError` if the lease had expired or was given back."""
    known = _owned(ledger, past, lease, consumer)
    if known.state is LeaseState.SETTLED:
        return Decision(known)
    if known.state is not LeaseState.TAKEN:
        raise _over(known)
    settled = replace(known, state=LeaseState.SETTLED, ended_at=now)
    return Decision(settled, (*(spend(group, now) for group in leased(ledger, known)), settled))


def release_lease(ledger: Ledger, past: Past, lease: str, consumer: str, now: float) -> Decision[LeaseRecord]:
    """The consumer does not want the groups: they are ready again. Again is fine."""
    known = _owned(ledger, past, lease, consumer)
    if known.state is LeaseState.RELEASED:
        return Decision(known)
    if known.state is not LeaseState.TAKEN:
        raise _over(known)
    return Decision(*_given_back(ledger, known, LeaseState.RELEASED, now))


def expire_leases(ledger: Ledger, now: float) -> Decision[tuple[LeaseRecord, ...]]:
    """End the leases that were not renewed in time; their groups are ready again. Call it as the store's clock goes on.

    If they have very many groups between them, some are left to the next call: others must get a turn.
    """
    expired: list[LeaseRecord] = []
    records: list[Record] = []
    for lease in ledger.leases.values():
        if lease.expires_at <= now:
            if expired and len(records) + len(lease.groups) > MOST_GROUPS:
                break
            ended, given_back = _given_back(ledger, lease, LeaseState.EXPIRED, now)
            expired.append(ended)
            records.extend(given_back)
    return Decision(tuple(expired), tuple(records))


def find_lease(ledger: Ledger, past: Past, lease: str) -> LeaseRecord | None:
    """The lease, whether it is over or not."""
    return ledger.leases.get(lease) or past.lease(ledger.run.run, lease)


def new_lease(ledger: Ledger, lease: str, consumer: str, groups: Iterable[GroupRecord], seconds: float, now: float) -> LeaseRecord:
    """A lease of `groups` with the next fence."""
    return LeaseRecord(
        run=ledger.run.run,
        lease=lease,
        consumer=consumer,
        groups=tuple([PlannedGroup(id=group.id, digest=group.digest) for group in groups]),
        state=LeaseState.TAKEN,
        fence=ledger.last_fence + 1,
        seconds=seconds,
        expires_at=now + seconds,
        taken_at=now,
    )


def leased(ledger: Ledger, lease: LeaseRecord) -> Iterator[GroupRecord]:
    """The groups of a lease that is taken, without those that the store could not give because their record is damaged: nothing becomes of them any more."""
    return (ledger.groups[planned.id] for planned in lease.groups if planned.id in ledger.groups)


def leasable(ledger: Ledger, request: LeaseRequest) -> Iterator[GroupRecord]:
    """Ready groups in the order they are taken; lazy, so that a long queue costs nothing."""
    names = sorted(ledger.ready) if request.environments is None else sorted(set(request.environments))
    queues = [ledger.ready[name] for name in names if name in ledger.ready]
    newest = request.order == "newest"
    in_order: list[Iterator[ReadyKey]] = [reversed(queue) if newest else iter(queue) for queue in queues]
    keys = in_order[0] if len(in_order) == 1 else heapq.merge(*in_order, reverse=newest)
    return (group for group in (ledger.groups[key[2]] for key in keys) if not group.updates)


def ready_in_order(ledger: Ledger) -> list[str]:
    """Ids of all groups that are ready now, oldest first. Whoever goes through them in steps must look each of them up when its turn has come."""
    queues = list(ledger.ready.values())
    keys = queues[0] if len(queues) == 1 else sorted(itertools.chain.from_iterable(queues))
    return [key[2] for key in keys]


def spend(group: GroupRecord, now: float) -> GroupRecord:
    """A bound group that its consumer has used."""
    return move_group(group, GroupState.SPENT, credit=0, ended_at=now)


def check_request(request: LeaseRequest) -> None:
    """Raise `InvalidError` for a request that cannot be met."""
    if request.groups is not None and request.items is not None:
        raise InvalidError("a lease is asked for by groups or by items, not by both")
    for field in ("groups", "items", "at_least"):
        value = getattr(request, field)
        if value is not None and not 1 <= value < 2**53:
            raise InvalidError(f"{field}: must be 1 or more, got {value}")
    most = MOST_GROUPS if request.groups is None else min(request.groups, MOST_GROUPS)
    if request.at_least > most:
        raise InvalidError(f"at_least: {request.at_least} groups cannot be among {most}")
    _check_seconds(request.seconds)


def _check_seconds(seconds: float) -> float:
    if not (math.isfinite(seconds) and 0 < seconds <= LONGEST_SECONDS):
        raise InvalidError(f"seconds: must be above 0 and at most {LONGEST_SECONDS:.0f}, got {seconds}")
    return seconds


def _chosen(request: LeaseRequest, queue: Iterator[GroupRecord]) -> list[GroupRecord] | Wait:
    groups: list[GroupRecord] = []
    items = 0
    for group in queue:
        if len(groups) == request.groups or (request.items is not None and items >= request.items):
            break
        if len(groups) == MOST_GROUPS:
            if request.items is not None:
                raise InvalidError(f"items: the {MOST_GROUPS} groups that one lease may have hold {items}, not {request.items}; ask for fewer")
            break
        groups.append(group)
        items += group.usable
    if len(groups) < request.at_least:
        return Wait(f"{len(groups)} groups are ready, {request.at_least} are needed")
    if request.items is not None and items < request.items:
        return Wait(f"{items} items are ready, {request.items} are needed")
    return groups


def _given_back(ledger: Ledger, lease: LeaseRecord, state: LeaseState, now: float) -> tuple[LeaseRecord, tuple[Record, ...]]:
    ended = replace(lease, state=state, ended_at=now)
    # One whose items arrive by themselves keeps the time at which it was handed out: its pass is over, though it had room left.
    ready = (move_group(group, GroupState.READY, bound_at=group.bound_at if group.arrival else None, lease=None) for group in leased(ledger, lease))
    return ended, (*ready, ended)


def _owned(ledger: Ledger, past: Past, lease: str, consumer: str) -> LeaseRecord:
    known = find_lease(ledger, past, lease)
    if known is None:
        raise UnknownError(f"no lease {lease}")
    _check_owner(known, consumer)
    return known


def _check_owner(lease: LeaseRecord, consumer: str) -> None:
    if lease.consumer != consumer:
        raise ForbiddenError(f"lease {lease.lease} is not of {consumer}")


def _over(lease: LeaseRecord) -> FencedError:
    return FencedError(f"lease {lease.lease} is over: it is {lease.state}")
