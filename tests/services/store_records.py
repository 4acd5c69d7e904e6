"""What every `Store` must do with records: they come back as they were, in order, each from its own run. Part of `store_contract.py`."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from tests.services.store_stage import ONE_OF_EACH, RUN, Rig, annotation, entry, group, member, payload, plan, rollout

from penstock.errors import UnknownError
from penstock.types import (
    AnnotationRecord,
    ArchiveFile,
    Arrival,
    CheckpointRecord,
    GroupRecord,
    GroupState,
    HeldSlot,
    JournalEntry,
    Laws,
    LeaseRecord,
    LeaseState,
    MemberRecord,
    MemberState,
    Outcome,
    Payload,
    Plan,
    PlannedGroup,
    Purpose,
    ReaderRecord,
    RolloutRecord,
    RolloutStatus,
    RunRecord,
    SessionRecord,
    SpentGroups,
    TermRecord,
    Version,
)


class RecordsContract:
    """Records come back."""

    def test_one_record_of_each_kind_comes_back_equal(self, rig: Rig) -> None:
        store = rig.open()
        store.submit(ONE_OF_EACH)
        store.close()
        store = rig.open()
        by_noun = {type(record): record for record in ONE_OF_EACH}
        assert store.runs() == (RUN,)
        assert store.group("demo", "src/0/0") == by_noun[GroupRecord]
        assert store.members("demo", "src/0/0") == (by_noun[MemberRecord],)
        assert store.rollout("demo", "u0") == by_noun[RolloutRecord]
        assert store.rollouts("demo", "src/0/0") == (by_noun[RolloutRecord],)
        assert store.annotations("demo", "src/0/0") == (by_noun[AnnotationRecord],)
        assert store.plan("demo", 0) == by_noun[Plan]
        assert store.payload("demo", "u0") == by_noun[Payload]
        assert store.journal("demo", "e0") == (by_noun[JournalEntry],)
        snapshot = store.load("demo")
        assert snapshot is not None
        assert (snapshot.run, snapshot.groups, snapshot.members) == (RUN, (by_noun[GroupRecord],), (by_noun[MemberRecord],))
        assert (snapshot.rollouts, snapshot.annotations) == ((by_noun[RolloutRecord],), (by_noun[AnnotationRecord],))
        assert (snapshot.sessions, snapshot.term) == ((by_noun[SessionRecord],), by_noun[TermRecord])
        assert (snapshot.plans, snapshot.outcomes) == ((by_noun[Plan],), (by_noun[Outcome],))
        assert (snapshot.versions, snapshot.checkpoints) == ((by_noun[Version],), (by_noun[CheckpointRecord],))
        assert store.lease("demo", "l1") == by_noun[LeaseRecord]
        assert (snapshot.leases, snapshot.last_fence, snapshot.readers) == ((by_noun[LeaseRecord],), 3, (by_noun[ReaderRecord],))
        assert store.corrupt() == ()
        store.close()

    def test_a_slot_is_filled_by_the_usable_rollout_of_its_try_alone(self, rig: Rig) -> None:
        store = rig.open()
        slots = [member(0, 0, session="s"), member(0, 1, retry=1), member(0, 2), member(0, 3, MemberState.FAILED), member(0, 4)]
        tries = [rollout("a", 0, 0), rollout("b", 0, 1), rollout("c", 0, 2, status=RolloutStatus.ENV_ERROR), rollout("d", 0, 3), rollout("e", 1, 4)]
        store.submit([RUN, group(0, size=5), group(1), *slots, *tries])
        filled = replace(slots[0], state=MemberState.ACCEPTED, session=None, uid="a")
        assert store.members("demo", "src/0/0") == (filled, *slots[1:])
        rig.settle(store)
        assert store.members("demo", "src/0/0") == (filled, *slots[1:])
        snapshot = store.load("demo")
        assert snapshot is not None
        assert snapshot.members == tuple(slots), "as they were kept"
        store.close()

    def test_a_record_replaces_the_older_one_of_its_key(self, rig: Rig) -> None:
        store = rig.open()
        store.submit([RUN, group(0), member(0, 0), plan(3)])
        rig.settle(store)
        later = [group(0, GroupState.READY, ready_at=2.0), member(0, 0, MemberState.ACCEPTED, uid="u"), replace(plan(3), void=True)]
        store.submit(later)
        rig.settle(store)
        assert [store.group("demo", "src/0/0"), *store.members("demo", "src/0/0"), store.plan("demo", 3)] == later
        assert list(store.scan_groups("demo")) == [later[0]]
        store.close()

    def test_look_ups_are_ordered(self, rig: Rig) -> None:
        store = rig.open()
        runs = [RunRecord(run=name, laws=Laws(), opened_at=0.0) for name in ("b", "a")]
        tries = [rollout("z", 1, 0, 0), rollout("y", 1, 1, 0), rollout("x", 1, 0, 1)]
        notes = [annotation("z", 1, "b", 10), annotation("z", 1, "b", 9), annotation("z", 1, "b"), annotation("z", 1, "a", 11), annotation("y", 1, "c", 0)]
        entries = [entry("e", index) for index in (0, 1, 2, 10, 9)]
        store.submit([*runs, group(1), member(1, 1), member(1, 0), *tries, *notes, *entries])
        rig.settle(store)
        assert [run.run for run in store.runs()] == ["a", "b"]
        assert [slot.member for slot in store.members("demo", "src/0/1")] == [0, 1]
        assert [found.uid for found in store.rollouts("demo", "src/0/1")] == ["z", "x", "y"]
        assert [(note.rollout_uid, note.name, note.step) for note in store.annotations("demo", "src/0/1")] == [
            ("y", "c", 0),
            ("z", "a", 11),
            ("z", "b", None),
            ("z", "b", 9),
            ("z", "b", 10),
        ]
        assert [event.index for event in store.journal("demo", "e")] == [0, 1, 2, 9, 10]
        assert [event.index for event in store.journal("demo", "e", 9)] == [9, 10]
        assert (store.episodes("demo"), store.episodes("a")) == (("e",), ())
        assert [found.uid for found in store.scan_rollouts("demo")] == ["x", "y", "z"]
        store.close()

    def test_runs_do_not_see_each_other(self, rig: Rig) -> None:
        store = rig.open()
        other = replace(group(0), run="other", environment="math")
        store.submit([RUN, group(0), member(0, 0), payload("u", b"ours"), replace(RUN, run="other"), other, payload("u", b"theirs", run="other")])
        rig.settle(store)
        assert store.group("other", "src/0/0") == other
        assert store.members("other", "src/0/0") == ()
        assert (store.payload("demo", "u").body, store.payload("other", "u").body) == (b"ours", b"theirs")
        snapshot = store.load("other")
        assert snapshot is not None
        assert snapshot.groups == (other,)
        assert list(snapshot.tallies) == [("math", Purpose.TRAIN)]
        store.close()

    def test_a_scan_goes_through_more_than_a_page_in_order(self, rig: Rig) -> None:
        store = rig.open()
        numbers = list(range(1203))
        random.Random(5).shuffle(numbers)
        store.submit([group(number, order=number) for number in numbers] + [rollout(f"u{number:04}", number) for number in numbers])
        rig.settle(store)
        assert [found.order for found in store.scan_groups("demo")] == list(range(1203))
        assert [found.uid for found in store.scan_rollouts("demo")] == [f"u{number:04}" for number in range(1203)]
        store.close()

    def test_what_is_not_there_is_none_empty_or_unknown(self, rig: Rig) -> None:
        store = rig.open()
        assert store.runs() == ()
        assert store.load("demo") is None
        assert store.group("demo", "src/0/0") is None
        assert store.rollout("demo", "u0") is None
        assert store.plan("demo", 0) is None
        assert store.members("demo", "g") == store.rollouts("demo", "g") == store.annotations("demo", "g") == store.journal("demo", "e") == ()
        assert list(store.scan_groups("demo")) == list(store.scan_rollouts("demo")) == []
        with pytest.raises(UnknownError, match="u0"):
            store.payload("demo", "u0")
        store.close()

    # Looked up by what became of them

    def test_a_lease_that_is_over_is_found_by_its_id_and_leaves_its_fence(self, rig: Rig) -> None:
        store = rig.open()
        taken = next(record for record in ONE_OF_EACH if isinstance(record, LeaseRecord))
        store.submit((RUN, taken, replace(taken, lease="l2", fence=4, state=LeaseState.SETTLED), replace(taken, lease="l3", fence=5, state=LeaseState.EXPIRED)))
        store.close()
        store = rig.open()
        snapshot = store.load("demo")
        assert snapshot is not None
        assert ([lease.lease for lease in snapshot.leases], snapshot.last_fence) == (["l1"], 5)
        ended = store.lease("demo", "l2")
        assert ended is not None
        assert ended.state is LeaseState.SETTLED
        assert store.lease("demo", "l9") is None
        store.close()

    def test_bytes_of_groups_come_in_the_order_they_were_stored(self, rig: Rig) -> None:
        store = rig.open()
        store.submit((RUN, group(0, GroupState.OPEN), group(1, GroupState.OPEN)))
        for number, (uid, place) in enumerate((("z", 0), ("b", 1), ("a", 0))):
            store.submit((rollout(uid, place, member=number), payload(uid, uid.encode())))
        store.close()
        store = rig.open()
        found = store.bodies("demo", ["src/0/0", "src/0/1", "src/0/2"])
        assert {name: [stored.body for stored in bodies] for name, bodies in found.items()} == {"src/0/0": [b"z", b"a"], "src/0/1": [b"b"], "src/0/2": []}
        store.close()

    def test_groups_that_became_ready_later_are_found_whatever_became_of_them(self, rig: Rig) -> None:
        store = rig.open()
        states = (GroupState.READY, GroupState.DROPPED, GroupState.SPENT, GroupState.OPEN)
        store.submit((RUN, *(group(index, state, ready_order=None if state is GroupState.OPEN else 3 - index) for index, state in enumerate(states))))
        store.close()
        store = rig.open()
        assert [found.order for found in store.groups_since("demo", -1)] == [2, 1, 0]
        assert [found.order for found in store.groups_since("demo", 2)] == [0]
        store.close()

    def test_groups_that_are_spent_together_come_back_as_if_each_was_written_again(self, rig: Rig) -> None:
        store = rig.open()
        ready = [
            group(index, GroupState.READY, ready_order=index, ready_at=2.0, tokens=5, arrival=Arrival(instance="i", rewards=(1.0,))) for index in range(600)
        ]
        store.submit((RUN, *ready[:599]))
        rig.settle(store)
        taken = SpentGroups(run="demo", lease="read-1", spent_at=3.25, groups=tuple(ready[1:]))
        after = [taken.after(each) for each in ready[1:]]
        with rig.hold(store):
            # The last is not durable as a ready one either.
            store.submit(ready[599:])
            store.submit([taken])
            store.submit([replace(after[3], archive="a.parquet")])
            assert [store.group("demo", each.id) for each in (ready[0], ready[1], ready[599])] == [ready[0], after[0], after[-1]]
            assert store.group("other", ready[1].id) is None
            assert len(list(store.scan_groups("demo"))) == 599
        rig.settle(store)
        filed = replace(after[3], archive="a.parquet")
        assert store.group("demo", filed.id) == filed
        store.close()
        store = rig.open()
        assert list(store.scan_groups("demo")) == [ready[0], *after[:3], filed, *after[4:]]
        assert store.group("demo", "src/0/9") == after[8]
        snapshot = store.load("demo")
        assert snapshot is not None
        assert snapshot.groups == (ready[0],)
        assert snapshot.tallies["digits", Purpose.TRAIN].groups == {(GroupState.READY, None): 1, (GroupState.SPENT, None): 599}
        assert store.settled_groups("demo", 5) == (*after[:3], *after[4:6])
        assert len(store.groups_since("demo", 590)) == 9
        store.close()

    def test_only_groups_that_nothing_will_happen_to_wait_for_the_archive(self, rig: Rig) -> None:
        store = rig.open()
        assert store.settled_groups("demo", 9) == store.archive_files("demo") == ()
        waiting = [group(index, state) for index, state in enumerate(GroupState)]
        evaluated = group(6, GroupState.READY, purpose=Purpose.EVAL)
        moved = group(7, GroupState.SPENT, archive="archive/f.parquet")
        empty = group(8, GroupState.DROPPED, archive="", reason="too_few")
        store.submit((RUN, *waiting, evaluated, moved, empty))
        rig.settle(store)
        settled = (*(found for found in waiting if found.state in (GroupState.SPENT, GroupState.DROPPED)), evaluated)
        assert store.settled_groups("demo", 9) == settled
        assert store.settled_groups("demo", 1) == settled[:1]
        store.submit((replace(settled[0], archive="archive/f.parquet"),))
        rig.settle(store)
        assert store.settled_groups("demo", 9) == settled[1:]
        store.close()

    def test_archive_files_come_back_by_number_and_are_known_before_they_are_durable(self, rig: Rig) -> None:
        store = rig.open()
        files = [ArchiveFile(run="demo", name=f"archive/{number}", number=number, digest="d", size_bytes=9, rows=2, groups=1) for number in (1, 0)]
        with rig.hold(store):
            assert store.next_archive_number("demo") == 0
            store.submit((RUN, *files))
            assert store.archive_files("demo") == tuple(reversed(files))
            assert store.next_archive_number("demo") == 2
        store.submit((replace(files[1], retired_at=4.5),))
        store.close()
        store = rig.open()
        assert store.archive_files("demo") == (replace(files[1], retired_at=4.5), files[0])
        assert (store.next_archive_number("demo"), store.next_archive_number("other")) == (2, 0)
        store.close()

    def test_the_newest_rollouts_are_found_from_the_end(self, rig: Rig) -> None:
        store = rig.open()
        rollouts = [rollout(f"u{(7 * index) % 1200:04d}", index, stored_at=float(index)) for index in range(1200)]
        store.submit((RUN, *rollouts, rollout("x", 0, run="other", stored_at=5000.0)))
        rig.settle(store)
        assert tuple(store.rollouts_since("demo", 1197.0)) == (rollouts[1199], rollouts[1198])
        assert tuple(store.rollouts_since("demo", 99.5)) == tuple(reversed(rollouts[100:]))
        assert len(tuple(store.rollouts_since("demo", -1.0))) == 1200
        assert tuple(store.rollouts_since("demo", 1199.0)) == ()
        store.close()

    def test_the_history_of_a_group_is_who_names_it(self, rig: Rig) -> None:
        store = rig.open()
        planned = (PlannedGroup(id="g/0/1", digest="d"), PlannedGroup(id="g/0/2", digest="d"))
        taken = LeaseRecord(run="demo", lease="l1", consumer="c", groups=planned, state=LeaseState.EXPIRED, fence=1, seconds=1.0, expires_at=2.0, taken_at=1.0)
        slot = HeldSlot(group_id="g/0/1", member=0, retry=0, claimed_at=1.0)
        lost = SessionRecord(run="demo", session="s1", worker="w", expires_at=2.0, ended=True, ended_at=3.0, reason="worker_lost", held=(slot,))
        alive = SessionRecord(run="demo", session="s2", worker="g/0/1", expires_at=2.0)
        named = replace(plan(0), run="demo", groups=planned[:1])
        store.submit([RUN, replace(taken, lease="l2", fence=2, groups=planned[:1]), taken, lost, alive, named, replace(taken, run="other")])
        for _ in range(2):
            assert store.history("demo", "g/0/2") == ((), (taken,), ())
            assert store.history("demo", "g/0/1") == ((named,), (taken, replace(taken, lease="l2", fence=2, groups=planned[:1])), (lost,))
            assert store.history("demo", "g/0") == ((), (), ())
            # Once more from disk.
            store.close()
            store = rig.open()
