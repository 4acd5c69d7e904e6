"""Capacity of a pool: when more becomes ready than an environment may hold, the oldest that is ready makes room."""

from __future__ import annotations

from collections import Counter
from typing import TypeVar

from penstock.ledger.book import Decision, Ledger
from penstock.ledger.cut import done
from penstock.ledger.groups import drop
from penstock.types import GroupRecord, GroupState, Purpose, Record

Reply = TypeVar("Reply")


def fills_a_pool(ledger: Ledger, decision: Decision[Reply]) -> bool:
    """Whether the decision makes a group ready whose pool has a capacity."""
    capacity = ledger.laws.capacity_rollouts
    return bool(capacity) and any(_is_ready(record) and record.environment in capacity for record in decision.records if isinstance(record, GroupRecord))


def make_room(ledger: Ledger, decision: Decision[Reply], now: float) -> Decision[Reply]:
    """The decision, and with it the end of as many ready groups, oldest first, as its pools are over their capacity.

    Writes are not refused for it: what just came in is fresher than what nobody took. A group that has trained is done, the others are dropped
    (`capacity`). The groups of the decision itself stay, so a single group may be bigger than the capacity.
    """
    touched = {record.id: record for record in decision.records if isinstance(record, GroupRecord)}
    growth: Counter[str] = Counter()
    for record in touched.values():
        growth[record.environment] += record.usable if _is_ready(record) else 0
        held = ledger.groups.get(record.id)
        growth[record.environment] -= held.usable if held is not None and _is_ready(held) else 0
    records: list[Record] = []
    for environment, capacity in sorted(ledger.laws.capacity_rollouts.items()):
        pool = ledger.pools.ready.get(environment)
        over = (pool.rollouts if pool is not None else 0) + growth[environment] - capacity
        for _, _, group_id in ledger.ready.get(environment, ()) if growth[environment] > 0 else ():
            if over <= 0:
                break
            if group_id in touched:
                continue
            group = ledger.groups[group_id]
            records += [done(ledger, group, now)] if group.updates else drop(ledger, group, "capacity", now)
            over -= group.usable
    return Decision(decision.reply, (*decision.records, *records))


def _is_ready(group: GroupRecord) -> bool:
    return group.state is GroupState.READY and group.purpose is Purpose.TRAIN
