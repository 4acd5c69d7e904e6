"""Enrichment as leased work: which annotations of which rollouts are missing, and who is at it.

A lease of work only keeps two workers from doing the same thing at once. It is not durable: results are annotations, which are, and the same one
twice changes nothing. So after a restart work may be handed out again, and a result is taken whoever brings it, also after its lease has ended.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from penstock.errors import FencedError, ForbiddenError, LimitError, UnknownError
from penstock.ledger.book import Ledger
from penstock.types import GroupRecord, Purpose

MOST_LEASES = 4096
"""Leases of work that a run may have at once."""
ENDED_REMEMBERED = 4096
"""Leases that have ended and are still known by name, so that their holder hears that it was replaced and not that it never was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkItem:
    """A rollout that lacks annotations."""

    rollout_uid: str
    group_id: str
    environment: str
    problem_id: str
    member: int
    missing: tuple[str, ...]
    """Names of the annotations to make; a failed one, with its reason, is a result too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkLease:
    """Items that one consumer works on."""

    run: str
    lease: str
    """Named by the consumer, so that asking twice takes once."""
    consumer: str
    items: tuple[WorkItem, ...]
    expires_at: float
    seconds: float
    """How long it lasts from the last time it was renewed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkRequest:
    """What a consumer asks for."""

    lease: str
    consumer: str
    count: int = 1
    names: tuple[str, ...] | None = None
    """Annotations that it can make; None: any."""
    environments: tuple[str, ...] | None = None
    seconds: float = 60.0


class WorkBook:
    """Leases of the work of one run, in memory."""

    def __init__(self) -> None:
        self._leases: dict[str, WorkLease] = {}
        self._taken: dict[tuple[str, str], str] = {}
        """(rollout, name): the lease that has it."""
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._none_left: dict[str, set[str]] = {}
        """By name: complete groups that have nothing of it to hand out. Those who wait for work look again after every change, and must not look at all
        that others have."""

    def take(self, ledger: Ledger, wanted: WorkRequest, now: float) -> WorkLease:
        """Items that nobody has, oldest group first; without any, a lease that holds nothing and is forgotten at once.

        Asked again under the same name it gives the same items. Raises `ForbiddenError` if the name is another's, `FencedError` if it has ended.
        """
        if wanted.lease in self._leases:
            return self._own(wanted.lease, wanted.consumer)
        if wanted.lease in self._ended:
            raise FencedError(f"lease {wanted.lease} is over; take work under a new name")
        if len(self._leases) >= MOST_LEASES:
            raise LimitError(f"{len(self._leases)} leases of work are open; finish or release some first")
        items: list[WorkItem] = []
        for item in self._free(ledger, wanted):
            if len(items) == wanted.count:
                break
            items.append(item)
        lease = WorkLease(
            run=ledger.run.run, lease=wanted.lease, consumer=wanted.consumer, items=tuple(items), expires_at=now + wanted.seconds, seconds=wanted.seconds
        )
        if items:
            self._leases[lease.lease] = lease
            self._taken.update({(item.rollout_uid, name): lease.lease for item in items for name in item.missing})
        return lease

    def renew(self, lease: str, consumer: str, now: float) -> WorkLease:
        """Go on for as long again. Raises `FencedError` if it has ended."""
        known = self._own(lease, consumer)
        renewed = self._leases[lease] = replace(known, expires_at=now + known.seconds)
        return renewed

    def release(self, lease: str, consumer: str) -> bool:
        """Give back what was not done; says whether there was anything to give back. Twice is fine."""
        if lease in self._ended:
            return False
        self._end(self._own(lease, consumer))
        return True

    def expire(self, now: float) -> tuple[WorkLease, ...]:
        """End the leases whose time is over; what they hold is free again."""
        over = tuple(lease for lease in self._leases.values() if lease.expires_at <= now)
        for lease in over:
            self._end(lease)
        return over

    def later(self, seconds: float) -> None:
        """A time in which nobody could be heard does not count."""
        self._leases = {name: replace(lease, expires_at=lease.expires_at + seconds) for name, lease in self._leases.items()}

    def look_again(self) -> None:
        """The ledger was loaded anew: annotations may be missing that were there."""
        self._none_left.clear()

    def _own(self, lease: str, consumer: str) -> WorkLease:
        known = self._leases.get(lease)
        if known is None:
            if lease in self._ended:
                raise FencedError(f"lease {lease} is over; what it held may be another's by now")
            raise UnknownError(f"no lease {lease} of work")
        if known.consumer != consumer:
            raise ForbiddenError(f"lease {lease} is not held by {consumer}")
        return known

    def _end(self, lease: WorkLease) -> None:
        del self._leases[lease.lease]
        for item in lease.items:
            for name in item.missing:
                self._taken.pop((item.rollout_uid, name), None)
                self._none_left.get(name, set()).discard(item.group_id)
        self._ended[lease.lease] = None
        while len(self._ended) > ENDED_REMEMBERED:
            self._ended.popitem(last=False)

    def _free(self, ledger: Ledger, wanted: WorkRequest) -> Iterator[WorkItem]:
        names = _known(ledger, wanted.names)
        none_left = [self._none_left.setdefault(name, set()) for name in names]
        for some in none_left:
            if len(some) > 2 * len(ledger.complete):
                some.intersection_update(ledger.complete)
        over = set.intersection(*none_left) if none_left else ledger.complete.keys()
        for group_id in ledger.complete:
            if group_id in over or not _is_wanted(ledger.groups[group_id], wanted.environments):
                continue
            is_any = False
            for item in _missing_in(ledger, ledger.groups[group_id], names):
                free = tuple(name for name in item.missing if (item.rollout_uid, name) not in self._taken)
                if free:
                    is_any = True
                    yield replace(item, missing=free)
            if not is_any:
                for some in none_left:
                    some.add(group_id)


def missing_work(ledger: Ledger, names: Sequence[str] | None = None, environments: Sequence[str] | None = None) -> Iterator[WorkItem]:
    """Every rollout of a complete group that lacks an annotation which the laws name, oldest group first."""
    known = _known(ledger, names)
    for group_id in ledger.complete:
        group = ledger.groups[group_id]
        if _is_wanted(group, environments):
            yield from _missing_in(ledger, group, known)


def num_missing(ledger: Ledger) -> int:
    """How many `missing_work` gives."""
    names = ledger.laws.annotations
    if not names:
        return 0
    groups = [group for group_id in ledger.complete if _is_wanted(group := ledger.groups[group_id], None)]
    # Of a group without annotations every usable rollout lacks them.
    return sum([sum(1 for _ in _missing_in(ledger, group, names)) if ledger.annotations.get(group.id) else group.usable for group in groups])


def _known(ledger: Ledger, names: Sequence[str] | None) -> tuple[str, ...]:
    """Those of the names that the laws ask for."""
    return tuple(name for name in ledger.laws.annotations if names is None or name in names)


def _is_wanted(group: GroupRecord, environments: Sequence[str] | None) -> bool:
    return group.purpose is Purpose.TRAIN and (environments is None or group.environment in environments)


def _missing_in(ledger: Ledger, group: GroupRecord, names: Sequence[str]) -> Iterator[WorkItem]:
    present = {(found.rollout_uid, found.name) for found in ledger.annotations.get(group.id, {}).values()}
    for rollout in sorted(ledger.rollouts_of.get(group.id, ()), key=lambda found: found.member):
        missing = tuple(name for name in names if (rollout.uid, name) not in present)
        if rollout.status.usable and missing:
            yield WorkItem(
                rollout_uid=rollout.uid,
                group_id=group.id,
                environment=group.environment,
                problem_id=group.problem_id,
                member=rollout.member,
                missing=missing,
            )
