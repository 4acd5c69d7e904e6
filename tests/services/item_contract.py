"""What every `Store` must do with items that arrive and with records that join; beside `store_contract.py`, and with the same `Rig`."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.services.store_stage import RUN, Rig, entry, group, item, payload, rollout

from penstock.errors import ConflictError, InvalidError, StoreError
from penstock.types import GroupState, MemberState, Purpose


class ItemContract:
    """Mixed into the test class of a store beside `StoreContract`."""

    def test_an_item_is_found_as_the_slot_rollout_and_bytes_that_it_stands_for(self, rig: Rig) -> None:
        store = rig.open()
        good, failed = item("z", 0, 0), item("a", 0, 1, failure="null_reward", reward=None, kept=False, body=b"x" * 9000)
        with rig.hold(store):
            store.submit([RUN, group(0), good, failed])
            assert store.rollout("demo", "z") == good.rollout
            assert store.payload("demo", "a") == failed.payload
            assert store.members("demo", "src/0/0") == (good.slot, failed.slot)
            assert store.rollouts("demo", "src/0/0") == (good.rollout, failed.rollout)
            assert list(store.scan_rollouts("demo")) == []
        store.close()
        store = rig.open()
        assert store.rollout("demo", "z") == good.rollout
        assert store.payload("demo", "a") == failed.payload
        assert store.members("demo", "src/0/0") == (good.slot, failed.slot)
        assert store.rollouts("demo", "src/0/0") == (good.rollout, failed.rollout)
        assert list(store.scan_rollouts("demo")) == [failed.rollout, good.rollout]
        assert [(found.uid, found.body) for found in store.bodies("demo", ["src/0/0"])["src/0/0"]] == [("z", good.body), ("a", failed.body)]
        snapshot = store.load("demo")
        assert snapshot is not None
        assert (snapshot.members, snapshot.rollouts) == ((good.slot, failed.slot), (good.rollout, failed.rollout))
        assert snapshot.tallies["digits", Purpose.TRAIN].members == {(MemberState.ACCEPTED, None): 1, (MemberState.FAILED, "null_reward"): 1}
        assert store.corrupt() == ()
        store.close()

    def test_items_that_are_not_durable_yet_are_found_in_their_own_group_and_run(self, rig: Rig) -> None:
        store = rig.open()
        store.submit([RUN, group(0), group(1), replace(RUN, run="other"), replace(group(0), run="other")])
        rig.settle(store)
        ours, elsewhere, theirs = item("u", 0), item("v", 1), replace(item("w", 0), run="other")
        with rig.hold(store):
            store.submit([ours, elsewhere, theirs])
            for run, group_id, expected in (("demo", "src/0/0", ours), ("demo", "src/0/1", elsewhere), ("other", "src/0/0", theirs)):
                assert store.rollouts(run, group_id) == (expected.rollout,)
                assert store.members(run, group_id) == (expected.slot,)
        store.close()

    def test_items_and_rollouts_are_scanned_in_one_order(self, rig: Rig) -> None:
        store = rig.open()
        items = [item(f"u{number:04}", 0, number) for number in range(0, 1200, 2)]
        rollouts = [rollout(f"u{number:04}", 0, number, stored_at=float(number)) for number in range(1, 1200, 2)]
        store.submit([RUN, group(0, GroupState.SPENT), *rollouts, *items])
        rig.settle(store)
        assert [found.uid for found in store.scan_rollouts("demo")] == [f"u{number:04}" for number in range(1200)]
        assert [found.stored_at for found in store.rollouts_since("demo", 1195.5)] == [1199.0, 1198.0, 1197.0, 1196.0]
        assert len(list(store.rollouts_since("demo", -1.0))) == 1200
        snapshot = store.load("demo")
        assert snapshot is not None
        assert snapshot.rollouts == ()
        store.close()

    def test_the_same_item_again_changes_nothing_and_another_is_a_conflict(self, rig: Rig) -> None:
        store = rig.open()
        store.submit([RUN, group(0), item("u", 0)])
        rig.settle(store)
        again = store.submit([item("u", 0), item("v", 0, 1)])
        other = store.submit([group(0, GroupState.DROPPED, reason="late"), item("w", 0, 2), item("u", 0, body=b"other")])
        rig.settle(store)
        assert again.result(0) is None
        with pytest.raises(ConflictError, match="other content"):
            other.result(0)
        assert store.payload("demo", "u").body == b"the body of u"
        assert [found.uid for found in store.rollouts("demo", "src/0/0")] == ["u", "v"]
        assert store.group("demo", "src/0/0") == group(0)
        store.close()

    def test_a_crash_leaves_items_whole_and_in_order(self, rig: Rig) -> None:
        items = [item(f"u{number}", 0, number, body=bytes([number]) * (number * 97 % 700 + 1)) for number in range(12)]
        store = rig.open()
        store.submit([RUN, group(0), *items[:5]])
        rig.settle(store)
        with rig.hold(store):
            for one in items[5:]:
                store.submit([one, entry("e", one.member)])
            rig.crash(store)
        store = rig.open()
        survivors = store.rollouts("demo", "src/0/0")
        assert survivors == tuple(one.rollout for one in items[: len(survivors)])
        assert len(survivors) >= 5
        assert [store.payload("demo", found.uid) for found in survivors] == [one.payload for one in items[: len(survivors)]]
        assert len(store.journal("demo", "e")) == len(survivors) - 5
        assert store.corrupt() == ()
        store.close()

    # Joining

    def test_what_joins_is_seen_at_once_and_durable_once_it_is_sent(self, rig: Rig) -> None:
        store = rig.open()
        joined = [store.join([RUN, group(0)]), store.join([item("u", 0)]), store.join([payload("p", b"bytes")])]
        assert store.rollout("demo", "u") == item("u", 0).rollout
        assert store.group("demo", "src/0/0") == group(0)
        with rig.hold(store):
            store.send()
            assert not any(future.done() for future in joined)
        rig.settle(store)
        assert [future.result(0) for future in joined] == [None] * 3
        rig.crash(store)
        store = rig.open()
        assert store.payload("demo", "u") == item("u", 0).payload
        store.close()

    def test_what_cannot_join_leaves_no_trace_and_the_others_stay(self, rig: Rig) -> None:
        store = rig.open()
        first = store.join([RUN, group(0), item("u", 0)])
        with pytest.raises(InvalidError):
            store.join([group(1), item("lone \ud800 surrogate", 1)])
        last = store.join([item("v", 0, 1)])
        store.send()
        rig.settle(store)
        assert (first.result(0), last.result(0)) == (None, None)
        assert store.group("demo", "src/0/1") is None
        assert [found.uid for found in store.scan_rollouts("demo")] == ["u", "v"]
        store.close()

    def test_a_submit_is_durable_no_earlier_than_what_has_joined_before(self, rig: Rig) -> None:
        store = rig.open()
        order: list[str] = []
        store.join([RUN, group(0)]).add_done_callback(lambda _: order.append("joined"))
        store.submit([group(1)]).add_done_callback(lambda _: order.append("submitted"))
        rig.settle(store)
        assert order == ["joined", "submitted"]
        store.close()

    def test_what_has_joined_a_store_that_is_reopened_fails_and_what_closes_is_kept(self, rig: Rig) -> None:
        store = rig.open()
        store.submit([RUN])
        rig.settle(store)
        lost = store.join([group(0)])
        store.reopen()
        assert isinstance(lost.exception(10), StoreError)
        kept = store.join([replace(group(1), order=0)])
        store.close()
        assert kept.result(0) is None
