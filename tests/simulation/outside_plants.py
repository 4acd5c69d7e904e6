"""Known bugs of arrivals, reads and leases."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

from penstock import ledger as law
from penstock.buffer.core import Buffer, Pending
from penstock.ledger import Decision, Ledger, arrivals, arriving
from penstock.types import GroupRecord, GroupState, LeaseState, SpentGroups
from tests.simulation.planting import Patches, laws_of, plant_outside, resolved


@plant_outside
def item_acknowledged_before_durable() -> Patches:
    """Writers of items are answered when their items are handed to the disk."""
    arrive = Buffer.arrive

    def hasty(self: Buffer, *args: Any) -> Pending[Any]:
        return replace(arrive(self, *args), durable=resolved())

    return [(Buffer, "arrive", hasty)]


@plant_outside
def lease_not_fenced() -> Patches:
    """A consumer whose lease has expired may still settle it."""
    settle = law.settle_lease

    def lenient(ledger: Ledger, past: Any, lease: str, consumer: str, now: float) -> Any:
        known = law.find_lease(ledger, past, lease)
        if known is not None and known.state is LeaseState.EXPIRED:
            return Decision(replace(known, state=LeaseState.SETTLED), ())
        return settle(ledger, past, lease, consumer, now)

    return [(law, "settle_lease", lenient)]


@plant_outside
def lease_never_expires() -> Patches:
    """Groups of a consumer that is gone stay with it."""
    return [(law, "expire_leases", lambda ledger, now: Decision((), ()))]


@plant_outside
def lease_of_anybody() -> Patches:
    """Whoever names a lease has it."""
    return [(laws_of("leases"), "_check_owner", lambda lease, consumer: None)]


@plant_outside
def lease_taken_again_takes_more() -> Patches:
    """A consumer that asks again for its lease is given other groups."""
    take = law.take_lease

    def generous(ledger: Ledger, past: Any, lease: str, consumer: str, request: Any, now: float) -> Any:
        return take(ledger, past, lease if law.find_lease(ledger, past, lease) is None else f"{lease}~{now}", consumer, request, now)

    def renamed(*args: Any) -> Any:
        decision = generous(*args)
        return replace(decision, reply=replace(decision.reply, lease=args[2])) if hasattr(decision.reply, "lease") else decision

    return [(law, "take_lease", renamed)]


@plant_outside
def read_gives_a_group_twice() -> Patches:
    """What is read stays ready."""
    read = arrivals.read

    def forgetful(*args: Any) -> Any:
        decision = read(*args)
        return Decision(decision.reply, tuple(record for record in decision.records if not isinstance(record, GroupRecord | SpentGroups)))

    return [(arrivals, "read", forgetful)]


@plant_outside
def timeout_closes_a_group_twice() -> Patches:
    """Groups that a timeout has dropped are dropped by the next one again."""
    time_out = arrivals.time_out
    before: list[GroupRecord] = []

    def again(*args: Any) -> Any:
        decision = time_out(*args)
        repeated = tuple(before)
        before[:] = [group for group in decision.reply if group.state is GroupState.DROPPED]
        return Decision((*decision.reply, *repeated), (*decision.records, *repeated))

    return [(arrivals, "time_out", again)]


@plant_outside
def item_twice_in_its_group() -> Patches:
    """An item that is written again is taken for another one."""
    arrive = arriving.arrive
    copies = count()

    def forgetful(ledger: Ledger, past: Any, rules: Any, item: Any, now: float) -> Any:
        if ledger.find_rollout(past, item.uid) is not None:
            item = replace(item, uid=f"{item.uid}~{next(copies)}")
        return arrive(ledger, past, rules, item, now)

    return [(arriving, "arrive", forgetful)]
