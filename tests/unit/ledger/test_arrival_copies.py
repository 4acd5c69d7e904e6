from __future__ import annotations

from dataclasses import fields, replace

from penstock.ledger.arrivals import _replaced
from penstock.types import Arrival, GroupRecord, GroupState, Purpose


def test_groups_that_are_changed_together_are_as_if_each_was_replaced() -> None:
    first = GroupRecord(run="r", id="a/0", environment="e", problem_id="a", purpose=Purpose.TRAIN, size=2, seed=3, state=GroupState.READY, order=4)
    second = replace(first, id="b/0", tokens=7, updates=(1,), arrival=Arrival(instance="b", rewards=(1.0, None)), digest="d")
    changes = {"state": GroupState.SPENT, "lease": "read-1", "ended_at": 5.0}
    made = _replaced([first, second], changes)
    assert made == [replace(first, **changes), replace(second, **changes)]
    assert first.state is second.state is GroupState.READY
    assert all(hasattr(made[0], each.name) for each in fields(GroupRecord))
