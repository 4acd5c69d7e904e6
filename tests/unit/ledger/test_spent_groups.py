"""Groups that a read takes together: one record that must do what the record of each group would do."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.ledger.queues import ReadyQueue
from penstock.testing.arrivals import Tray
from penstock.types import GroupState, SpentGroups


def filled() -> Tray:
    """Three groups that are ready, of which one takes another item, and one that is open, in two environments."""
    tray = Tray(group_size=4, min_valid_group_size_ratio=0.5)
    for instance, environment, rewards in (("a", "x", (1.0, 0.0)), ("b", "y", (1.0, None, 0.0, 1.0)), ("c", "x", (0.0, 1.0)), ("d", "x", (1.0,))):
        for place, reward in enumerate(rewards):
            tray.write(f"{instance}{place}", instance, reward, environment=environment, kept=reward is not None)
    return tray


def shown(tray: Tray) -> dict[str, Any]:
    ledger = tray.ledger
    parts = {name: vars(ledger)[name] for name in ("groups", "ready", "counts", "last_order", "last_ready_order")}
    return parts | {"pools": ledger.pools.ready, "trays": vars(ledger.trays), "stored": tray.stored_groups}


def test_groups_that_are_spent_together_are_as_if_each_was_written_by_itself() -> None:
    together, apart = filled(), filled()
    together.now = apart.now = 7.0
    taken = SpentGroups(run="run", lease="r1", spent_at=7.0, groups=tuple(together.ledger.groups[name] for name in ("b/0", "a/0")))
    together.ledger.apply([taken])
    together.stored_groups |= {group.id: taken.after(group) for group in taken.groups}
    each = [taken.after(apart.ledger.groups[name]) for name in ("b/0", "a/0")]
    apart.ledger.apply(each)
    apart.stored_groups |= {group.id: group for group in each}
    assert shown(together) == shown(apart)
    assert {group.state for group in each} == {GroupState.SPENT} and {group.lease for group in each} == {"r1"}
    assert together.ledger.trays.num_items == 3 and ("x", "a") not in together.ledger.trays.taking


def test_a_read_gives_ready_groups_away_in_one_record_and_open_ones_with_what_they_hold() -> None:
    tray = filled()
    tray.now = 9.0
    lease = tray.read("a/0", "d/0", b_0="equal_rewards")
    assert lease is not None and [planned.id for planned in lease.groups] == ["a/0", "d/0"]
    assert (tray.state("a/0"), tray.state("d/0"), tray.state("b/0"), tray.state("c/0")) == ("spent", "spent", "dropped(equal_rewards)", "ready")
    late = tray.stored_groups["d/0"]
    assert late.arrival is not None and late.arrival.rewards == (1.0,) and (late.bound_at, late.ended_at, late.lease) == (9.0, 9.0, "r1")
    assert tray.write("a9", "a", environment="x").late


@given(st.sets(st.integers(0, 30), min_size=1), st.data())
def test_keys_that_leave_a_queue_together_leave_what_one_by_one_leaves(numbers: set[int], data: st.DataObject) -> None:
    keys = [(0, number, str(number)) for number in sorted(numbers)]
    gone = data.draw(st.one_of(st.permutations(keys).map(lambda some: some[: len(some) // 2]), st.integers(0, len(keys)).map(lambda count: keys[:count])))
    together, apart = ReadyQueue(), ReadyQueue()
    for key in keys:
        together.add(key)
        apart.add(key)
    together.remove_all([group_id for _, _, group_id in gone])
    for key in gone:
        apart.remove(key)
    assert list(together) == list(apart)
    assert len(together) == len(keys) - len(gone)
