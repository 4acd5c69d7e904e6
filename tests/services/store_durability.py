"""What every `Store` must do about durability: when it acknowledges, what a crash leaves, what it refuses. Part of `store_contract.py`."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.services.store_stage import RUN, Rig, annotation, entry, group, member, payload, plan, rollout

from penstock.errors import ConflictError, InvalidError, InvariantError, StoreError, StoreFullError, UnknownError
from penstock.types import GroupState, MemberState, Record


class DurabilityContract:
    """What is acknowledged is kept."""

    def test_a_future_resolves_when_its_records_are_durable_and_not_before(self, rig: Rig) -> None:
        store = rig.open()
        rig.settle(store)
        with rig.hold(store):
            futures = [store.submit([group(index)]) for index in range(5)]
            assert not any(future.done() for future in futures)
        rig.settle(store)
        assert [future.result(0) for future in futures] == [None] * 5
        store.close()

    def test_look_ups_see_what_is_not_durable_yet(self, rig: Rig) -> None:
        store = rig.open()
        store.submit([RUN, group(0), member(0, 0), member(0, 1), payload("old", b"old"), entry("e", 0)])
        rig.settle(store)
        newer = group(0, GroupState.COMPLETE)
        with rig.hold(store):
            store.submit([newer, member(0, 1, MemberState.ACCEPTED), rollout("u", 0, 1), payload("u", b"new"), annotation("u", 0, "judge")])
            store.submit([entry("e", 1), plan(0), replace(RUN, run="another")])
            assert store.group("demo", "src/0/0") == newer
            assert store.members("demo", "src/0/0") == (member(0, 0), member(0, 1, MemberState.ACCEPTED))
            assert store.rollout("demo", "u") == rollout("u", 0, 1)
            assert store.rollouts("demo", "src/0/0") == (rollout("u", 0, 1),)
            assert store.annotations("demo", "src/0/0") == (annotation("u", 0, "judge"),)
            assert store.payload("demo", "u").body == b"new"
            assert [event.index for event in store.journal("demo", "e")] == [0, 1]
            assert store.plan("demo", 0) == plan(0)
            assert [run.run for run in store.runs()] == ["another", "demo"]
            assert list(store.scan_groups("demo")) == [group(0)]
            assert list(store.scan_rollouts("demo")) == []
        rig.settle(store)
        assert list(store.scan_groups("demo")) == [newer]
        snapshot = store.load("demo")
        assert snapshot is not None
        assert snapshot.members == (member(0, 0), member(0, 1, MemberState.ACCEPTED))
        store.close()

    def test_a_crash_keeps_what_was_acknowledged_and_a_prefix_of_the_rest(self, rig: Rig) -> None:
        bodies = [bytes([index]) * (index * 37 % 500 + 1) for index in range(12)]
        for num_acknowledged in (0, 1, 7):
            store = rig.open()
            run = f"crash-{num_acknowledged}"
            for index in range(num_acknowledged):
                store.submit(_episode(run, index, bodies[index]))
            rig.settle(store)
            with rig.hold(store):
                for index in range(num_acknowledged, len(bodies)):
                    store.submit(_episode(run, index, bodies[index]))
                rig.crash(store)
            store = rig.open()
            survivors = [found.order for found in store.scan_groups(run)]
            assert survivors == list(range(len(survivors)))
            assert len(survivors) >= num_acknowledged
            for index in survivors:
                assert store.payload(run, f"u{index}").body == bodies[index]
                assert store.rollout(run, f"u{index}") is not None
                assert len(store.members(run, f"src/0/{index}")) == 1
            assert len(list(store.scan_rollouts(run))) == len(survivors)
            assert len(store.journal(run, "e")) == len(survivors)
            assert store.corrupt() == ()
            store.close()

    def test_closing_makes_durable_what_was_submitted(self, rig: Rig) -> None:
        store = rig.open()
        futures = [store.submit([group(index), payload(f"u{index}", b"x" * index)]) for index in range(50)]
        store.close()
        assert [future.result(0) for future in futures] == [None] * 50
        with pytest.raises(StoreError, match="closed"):
            store.submit([group(0)]).result(10)
        store = rig.open()
        assert len(list(store.scan_groups("demo"))) == 50
        store.close()

    def test_an_empty_change_set_is_a_durable_write(self, rig: Rig) -> None:
        store = rig.open()
        with rig.hold(store):
            future = store.submit([])
            assert not future.done()
        rig.settle(store)
        assert future.result(0) is None
        rig.refuse_syncs(store)
        refused = store.submit([])
        rig.settle(store)
        with pytest.raises(StoreError):
            refused.result(0)
        rig.heal()
        store.reopen()
        store.close()

    def test_a_future_cannot_be_cancelled(self, rig: Rig) -> None:
        store = rig.open()
        with rig.hold(store):
            future = store.submit([group(0)])
            assert not future.cancel()
        rig.settle(store)
        assert future.result(0) is None
        store.close()

    # Refusals

    def test_the_same_bytes_again_change_nothing_and_others_are_a_conflict(self, rig: Rig) -> None:
        store = rig.open()
        store.submit([payload("u", b"body"), entry("e", 0, b"first"), group(0)])
        rig.settle(store)
        again = store.submit([payload("u", b"body"), entry("e", 0, b"first")])
        other_payload = store.submit([group(0, GroupState.DROPPED, reason="late"), payload("v", b"new"), payload("u", b"other")])
        other_entry = store.submit([entry("e", 1, b"second"), entry("e", 0, b"other")])
        after = store.submit([group(1)])
        rig.settle(store)
        assert again.result(0) is None
        for future in (other_payload, other_entry):
            with pytest.raises(ConflictError, match="other content"):
                future.result(0)
        assert after.result(0) is None
        assert store.payload("demo", "u").body == b"body"
        assert store.journal("demo", "e") == (entry("e", 0, b"first"),)
        assert store.group("demo", "src/0/0") == group(0)
        with pytest.raises(UnknownError):
            store.payload("demo", "v")
        store.close()

    def test_a_conflict_with_what_is_not_durable_yet_is_found_too(self, rig: Rig) -> None:
        store = rig.open()
        rig.settle(store)
        with rig.hold(store):
            futures = [store.submit([group(index), payload("u", body)]) for index, body in enumerate((b"one", b"two", b"one"))]
        rig.settle(store)
        assert futures[0].result(0) is None
        assert isinstance(futures[1].exception(0), ConflictError)
        assert futures[2].result(0) is None
        assert [found.order for found in store.scan_groups("demo")] == [0, 2]
        assert store.group("demo", "src/0/1") is None
        store.close()

    def test_a_member_needs_its_group(self, rig: Rig) -> None:
        store = rig.open()
        together = store.submit([member(0, 0), group(0)])
        alone = store.submit([payload("u", b""), member(1, 0)])
        rig.settle(store)
        assert together.result(0) is None
        with pytest.raises(InvariantError, match="before its group"):
            alone.result(0)
        with pytest.raises(UnknownError):
            store.payload("demo", "u")
        store.close()

    def test_a_record_that_cannot_be_written_fails_alone(self, rig: Rig) -> None:
        store = rig.open()
        unwritable = [payload("lone \ud800 surrogate", b""), group(1, environment="\ud800"), group(1, order=1 << 70)]
        futures = [store.submit([group(0)]), *(store.submit([group(9), record]) for record in unwritable), store.submit([group(2)])]
        rig.settle(store)
        assert [type(future.exception(0)) for future in futures] == [type(None), *[InvalidError] * 3, type(None)]
        assert [found.order for found in store.scan_groups("demo")] == [0, 2]
        store.close()

    # Failing disks

    @pytest.mark.parametrize(("fault", "failure"), [("fill", StoreFullError), ("refuse_syncs", StoreError)])
    def test_after_a_failing_disk_nothing_is_acknowledged_until_the_store_is_reopened(self, rig: Rig, fault: str, failure: type[StoreError]) -> None:
        store = rig.open()
        kept = store.submit([RUN, group(0), payload("kept", b"k" * 100)])
        rig.settle(store)
        assert kept.result(0) is None
        getattr(rig, fault)(store)
        lost = [store.submit([group(0, GroupState.DROPPED, reason="x"), payload(f"lost{index}", b"l" * 9000)]) for index in range(3)]
        rig.settle(store)
        later = store.submit([group(5)])
        rig.settle(store)
        for future in (*lost, later):
            with pytest.raises(failure):
                future.result(0)
        assert store.payload("demo", "kept").body == b"k" * 100
        assert store.group("demo", "src/0/0") == group(0)
        assert store.group("demo", "src/0/5") is None
        rig.heal()
        store.reopen()
        working = store.submit([group(6), payload("again", b"a" * 9000)])
        rig.settle(store)
        assert working.result(0) is None
        rig.crash(store)
        store = rig.open()
        assert store.payload("demo", "kept").body == b"k" * 100
        assert store.payload("demo", "again").body == b"a" * 9000
        store.close()


def _episode(run: str, index: int, body: bytes) -> list[Record]:
    """A change set with several records, to see that none comes without the others."""
    records = [group(index), member(index, 0), rollout(f"u{index}", index), entry("e", index, body)]
    return [*(replace(record, run=run) for record in records), payload(f"u{index}", body, run=run)]
