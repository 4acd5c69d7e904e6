"""What every `Store` must do about damaged records. Part of `store_contract.py`."""

from __future__ import annotations

import pytest
from tests.services.store_stage import RUN, Rig, damaged, entry, group, item, member, payload, plan

from penstock.errors import CorruptError
from penstock.types import ArrivedItem, CutRequest, Outcome, Payload, Record, TermRecord, Version


class DamageContract:
    """Damage is reported, and hides nothing else."""

    @pytest.mark.parametrize("bad", [payload("bad", b"-needle-" * 9), item("bad", 0, body=b"-needle-" * 9)], ids=lambda record: type(record).__name__)
    def test_damaged_bytes_are_reported_never_served_and_hide_nothing_else(self, rig: Rig, bad: Payload | ArrivedItem) -> None:
        store = damaged(rig, b"-needle-", RUN, group(0), bad, payload("good", b"intact"), item("fine", 0, 1))
        for _ in range(2):
            with pytest.raises(CorruptError, match="bad"):
                store.payload("demo", "bad")
        assert len(store.corrupt()) == 1
        assert store.payload("demo", "good").body == b"intact"
        assert store.payload("demo", "fine").body == b"the body of fine"
        assert [found.order for found in store.scan_groups("demo")] == [0, 3]
        store.submit([bad])
        rig.settle(store)
        assert store.payload("demo", "bad") == (bad.payload if isinstance(bad, ArrivedItem) else bad)
        assert store.rollout("demo", "bad") == (bad.rollout if isinstance(bad, ArrivedItem) else None)
        store.close()

    def test_damaged_facts_of_an_item_are_reported_and_never_served(self, rig: Rig) -> None:
        bad = item("bad", 0, problem_id="needle")
        store = damaged(rig, b"needle", RUN, group(0), item("good", 0, 1), bad)
        with pytest.raises(CorruptError, match="bad"):
            store.rollout("demo", "bad")
        assert [found.uid for found in store.rollouts("demo", "src/0/0")] == ["good"]
        assert [found.uid for found in store.scan_rollouts("demo")] == ["good"]
        assert len(store.corrupt()) == 1
        store.submit([bad])
        rig.settle(store)
        assert store.rollout("demo", "bad") == bad.rollout
        store.close()

    def test_a_damaged_group_is_left_out_and_the_others_are_loaded(self, rig: Rig) -> None:
        groups = [group(index, problem_id="needle" if index == 1 else "p") for index in range(3)]
        store = damaged(rig, b"needle", RUN, *groups, member(1, 0), member(2, 0))
        snapshot = store.load("demo")
        assert snapshot is not None
        assert [found.order for found in snapshot.groups] == [0, 2, 3]
        assert snapshot.members == (member(2, 0),)
        with pytest.raises(CorruptError, match="src/0/1"):
            store.group("demo", "src/0/1")
        assert len(store.corrupt()) == 1
        store.close()
        store = rig.open()
        with pytest.raises(CorruptError, match="src/0/1"):
            store.group("demo", "src/0/1")
        assert len(store.corrupt()) == 1
        store.submit([group(1)])
        rig.settle(store)
        assert store.group("demo", "src/0/1") == group(1)
        store.close()

    @pytest.mark.parametrize(
        "record",
        [
            plan(0, request=CutRequest(config_digest="needle")),
            Outcome(run="demo", update=0, kind="skipped", reason="needle"),
            Version(run="demo", version=0, digest="needle"),
            TermRecord(run="demo", term=0, owner="needle", expires_at=0.0, first_update=0),
        ],
        ids=lambda record: type(record).__name__,
    )
    def test_a_run_is_not_loaded_without_a_record_that_says_what_was_trained(self, rig: Rig, record: Record) -> None:
        store = damaged(rig, b"needle", RUN, record, group(0))
        for _ in range(2):
            with pytest.raises(CorruptError, match="checksum"):
                store.load("demo")
        assert store.group("demo", "src/0/0") == group(0)
        store.close()

    def test_an_episode_with_a_damaged_entry_is_not_continued_and_others_are(self, rig: Rig) -> None:
        store = damaged(rig, b"needle", entry("torn", 0, b"needle"), entry("torn", 1), entry("fine", 0))
        with pytest.raises(CorruptError, match="journal"):
            store.journal("demo", "torn")
        assert store.journal("demo", "fine") == (entry("fine", 0),)
        store.close()
