"""Items that come together are decided as they would be one after the other."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import ledger as law
from penstock.ledger.arrivals import Arrived
from penstock.testing.arrivals import Tray, item_of
from penstock.types import GroupState

ITEMS = st.builds(
    lambda number, instance, reward, environment, kept, content: item_of(f"u{number}", instance, reward, environment=environment, kept=kept, content=content),
    st.integers(0, 60),
    st.sampled_from("abc"),
    st.sampled_from([None, -1.0, 0.0, 1.0]),
    st.sampled_from(["p", "p", "p", "q"]),
    st.booleans(),
    st.sampled_from(["", "", "", "other"]),
)
TURNS = st.lists(st.tuples(st.lists(ITEMS, max_size=12), st.sampled_from(["nothing", "read", "wait"])), max_size=8)


@settings(max_examples=150, deadline=None)
@given(size=st.integers(1, 4), ratio=st.sampled_from([0.5, 1.0]), turns=TURNS)
def test_items_that_come_together_are_decided_as_one_after_the_other(size: int, ratio: float, turns: list[tuple[list[object], str]]) -> None:
    alone, together = (Tray(group_size=size, min_valid_group_size_ratio=ratio, group_timeout_seconds=10.0, min_timeout_group_size_ratio=0.5) for _ in range(2))
    for number, (items, then) in enumerate(turns):
        first = [alone.write_item(item) for item in items]  # type: ignore[arg-type]
        second = together.write_together(items)  # type: ignore[arg-type]
        assert [told(answer) for answer in first] == [told(answer) for answer in second]
        for tray in (alone, together):
            if then == "wait":
                tray.now += 11.0
                for environment in "pq":
                    tray.time_out(environment)
            ready = [group.id for group in tray.stored_groups.values() if group.state is GroupState.READY]
            if then == "read" and ready:
                tray.read(*sorted(ready), read_id=f"r{number}")
        same(alone, together)


def trays(ledger: law.Ledger) -> dict[str, object]:
    """The trays in their order, by environment."""
    return {environment: list(found.items()) for environment, found in ledger.trays.by_environment.items() if found}


def told(answer: object) -> object:
    """What somebody is told of an item."""
    return answer if isinstance(answer, Arrived) else str(answer)


def same(alone: Tray, together: Tray) -> None:
    assert alone.stored_groups == together.stored_groups
    assert alone.stored_rollouts == together.stored_rollouts
    assert alone.stored_members == together.stored_members
    one, other = alone.ledger, together.ledger
    assert (one.groups, one.ready) == (other.groups, other.ready)
    assert trays(one) == trays(other)
    assert (one.trays.taking, one.trays.num_items, one.trays.num_bytes) == (other.trays.taking, other.trays.num_items, other.trays.num_bytes)
    assert (one.last_order, one.last_ready_order, law.balance(one)) == (other.last_order, other.last_ready_order, law.balance(other))
    assert (one.pools.ready, one.pools.new) == (other.pools.ready, other.pools.new)
    assert law.imbalance(other) == 0
