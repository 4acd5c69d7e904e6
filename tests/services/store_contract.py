"""What every `Store` must do. A store joins by a `Rig` that opens it and breaks what it stands on; see `test_store_sqlite.py`, `test_store_memory.py`."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Protocol

import pytest

from penstock.buffer.store import Store
from penstock.errors import ConflictError, CorruptError, InvalidError, InvariantError, StoreError, StoreFullError, UnknownError
from penstock.types import (
    AnnotationRecord,
    ArchiveFile,
    Arrival,
    CheckpointRecord,
    CutRequest,
    GroupRecord,
    GroupState,
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
    Record,
    RolloutRecord,
    RolloutStatus,
    RunRecord,
    SessionRecord,
    Snapshot,
    SpentGroups,
    Tally,
    TermRecord,
    Version,
)
from penstock.wire import digest


class Rig(Protocol):
    """A store and the ground it stands on."""

    def open(self) -> Store:
        """The store as the disk has it. One at a time."""

    def settle(self, store: Store) -> None:
        """Return when all that was submitted is durable or has failed."""

    def hold(self, store: Store) -> AbstractContextManager[None]:
        """Nothing becomes durable inside."""

    def crash(self, store: Store) -> None:
        """Take the store away without a word, as a kill or a power loss does."""

    def fill(self, store: Store) -> None:
        """From now on the disk has no space."""

    def refuse_syncs(self, store: Store) -> None:
        """From now on a sync fails."""

    def heal(self) -> None:
        """The disk works again, once the store is reopened."""

    def flip(self, needle: bytes) -> None:
        """Damage the first of the stored bytes that spell `needle`. The store must be closed."""


RUN = RunRecord(run="demo", laws=Laws(max_lag=2, fractions={"digits": 0.5}), opened_at=1.5)


def group(index: int, state: GroupState = GroupState.OPEN, **changes: Any) -> GroupRecord:
    fields = {"run": "demo", "id": f"src/0/{index}", "environment": "digits", "problem_id": f"p{index}", "purpose": Purpose.TRAIN, "size": 2, "seed": 7}
    return GroupRecord(**(fields | {"state": state, "order": index} | changes))


def member(group_index: int, number: int, state: MemberState = MemberState.PENDING, **changes: Any) -> MemberRecord:
    return MemberRecord(**({"run": "demo", "group_id": f"src/0/{group_index}", "member": number, "state": state} | changes))


def rollout(uid: str, group_index: int, number: int = 0, retry: int = 0, **changes: Any) -> RolloutRecord:
    fields = {"run": "demo", "uid": uid, "group_id": f"src/0/{group_index}", "member": number, "retry": retry}
    return RolloutRecord(**(fields | {"status": RolloutStatus.OK, "digest": digest(uid.encode()), "reward": 0.5} | changes))


def annotation(rollout_uid: str, group_index: int, name: str, step: int | None = None) -> AnnotationRecord:
    uid = f"{rollout_uid}:{name}:{step}"
    return AnnotationRecord(run="demo", rollout_uid=rollout_uid, group_id=f"src/0/{group_index}", name=name, step=step, uid=uid, digest=digest(b""))


def payload(uid: str, body: bytes, run: str = "demo") -> Payload:
    return Payload(run=run, uid=uid, content_type="msgpack", body=body, digest=digest(body))


def entry(episode: str, index: int, body: bytes = b"event") -> JournalEntry:
    return JournalEntry(run="demo", episode=episode, index=index, body=body)


def plan(update: int, **changes: Any) -> Plan:
    fields = {"run": "demo", "update": update, "term": 1, "groups": (PlannedGroup(id="src/0/0", digest="d"),), "newest_version": update, "tokens": 9}
    return Plan(**(fields | {"request": CutRequest(budget_tokens=64, config={"a.b": "1"}), "carry": {"digits": -0.5}} | changes))


def outcome(update: int) -> Outcome:
    return Outcome(run="demo", update=update, kind="applied", version=update + 1, digest=digest(b"w"))


def checkpoint(update: int, *, kept: bool = True) -> CheckpointRecord:
    return CheckpointRecord(run="demo", update=update, digest="c", term=1, kept=kept)


ONE_OF_EACH: tuple[Record, ...] = (
    RUN,
    group(0, GroupState.COMPLETE, usable=1, oldest_version=3, updates=(1, 2)),
    member(0, 0, MemberState.ACCEPTED, uid="u0", session="w1", claimed_at=2.25),
    rollout("u0", 0, tokens=12, versions=(3, 4), prefix_digest="x"),
    annotation("u0", 0, "judge", 3),
    SessionRecord(run="demo", session="w1", worker="worker-1", expires_at=12.5),
    TermRecord(run="demo", term=4, owner="learner", expires_at=3.0, first_update=0),
    plan(0),
    outcome(0),
    Version(run="demo", version=1, digest="w", update=0, live=True),
    checkpoint(0),
    payload("u0", b"\x00bytes\xff"),
    entry("e0", 0),
    LeaseRecord(
        run="demo",
        lease="l1",
        consumer="trainer",
        groups=(PlannedGroup(id="src/0/0", digest="d"),),
        state=LeaseState.TAKEN,
        fence=3,
        seconds=60.0,
        expires_at=72.5,
        taken_at=12.5,
        facts={"a": "1"},
    ),
    ReaderRecord(run="demo", reader="r", read_id="l0", read_at=2.0, ready_order=4, reads=1, items=8),
)


class StoreContract:
    """Subclass it in a test module with a fixture `rig`."""

    # Leases and readers

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
            assert len(list(store.scan_groups("demo"))) == 599
        rig.settle(store)
        store.close()
        store = rig.open()
        assert list(store.scan_groups("demo")) == [ready[0], *after[:3], replace(after[3], archive="a.parquet"), *after[4:]]
        assert store.group("demo", "src/0/9") == after[8]
        snapshot = store.load("demo")
        assert snapshot is not None
        assert snapshot.groups == (ready[0],)
        assert snapshot.tallies["digits", Purpose.TRAIN].groups == {(GroupState.READY, None): 1, (GroupState.SPENT, None): 599}
        assert store.settled_groups("demo", 5) == (*after[:3], *after[4:6])
        assert len(store.groups_since("demo", 590)) == 9
        store.close()

    # Records come back

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
            store.submit((RUN, *files))
            assert store.archive_files("demo") == tuple(reversed(files))
        store.submit((replace(files[1], retired_at=4.5),))
        store.close()
        store = rig.open()
        assert store.archive_files("demo") == (replace(files[1], retired_at=4.5), files[0])
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

    # Durability

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

    # Damage

    def test_a_damaged_payload_is_reported_never_served_and_hides_nothing_else(self, rig: Rig) -> None:
        store = rig.open()
        store.submit([RUN, group(0), payload("bad", b"-needle-" * 9), payload("good", b"intact")])
        rig.settle(store)
        store.submit([group(1)])
        store.close()
        rig.flip(b"-needle-")
        store = rig.open()
        for _ in range(2):
            with pytest.raises(CorruptError, match="bad"):
                store.payload("demo", "bad")
        assert len(store.corrupt()) == 1
        assert store.payload("demo", "good").body == b"intact"
        assert [found.order for found in store.scan_groups("demo")] == [0, 1]
        store.submit([payload("bad", b"-needle-" * 9)])
        rig.settle(store)
        assert store.payload("demo", "bad").body == b"-needle-" * 9
        store.close()

    def test_a_damaged_group_is_left_out_and_the_others_are_loaded(self, rig: Rig) -> None:
        store = rig.open()
        store.submit([RUN, *(group(index, problem_id="needle" if index == 1 else "p") for index in range(3)), member(1, 0), member(2, 0)])
        rig.settle(store)
        store.submit([group(3)])
        store.close()
        rig.flip(b"needle")
        store = rig.open()
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
        store = rig.open()
        store.submit([RUN, record])
        rig.settle(store)
        store.submit([group(0)])
        store.close()
        rig.flip(b"needle")
        store = rig.open()
        for _ in range(2):
            with pytest.raises(CorruptError, match="checksum"):
                store.load("demo")
        assert store.group("demo", "src/0/0") == group(0)
        store.close()

    def test_an_episode_with_a_damaged_entry_is_not_continued_and_others_are(self, rig: Rig) -> None:
        store = rig.open()
        store.submit([entry("torn", 0, b"needle"), entry("torn", 1), entry("fine", 0)])
        rig.settle(store)
        store.submit([group(0)])
        store.close()
        rig.flip(b"needle")
        store = rig.open()
        with pytest.raises(CorruptError, match="journal"):
            store.journal("demo", "torn")
        assert store.journal("demo", "fine") == (entry("fine", 0),)
        store.close()

    # Snapshots

    def test_cursors_count_only_ids_that_the_ledger_counts(self, rig: Rig) -> None:
        store = rig.open()
        ids = ["src/0/999999999", "src/0/1000000000", "src/1000000000/0", "by-hand", "src/deep/2/3"]
        store.submit([RUN, *(group(index, id=group_id) for index, group_id in enumerate(ids))])
        rig.settle(store)
        snapshot = store.load("demo")
        assert snapshot is not None
        assert snapshot.cursors == {"src": (0, 999_999_999), "src/deep": (2, 3)}
        store.close()

    def test_a_snapshot_holds_what_the_ledger_needs_and_no_more(self, rig: Rig) -> None:
        store = rig.open()
        states = list(GroupState)
        groups = [group(index, state, reason="stale" if state is GroupState.DROPPED else None) for index, state in enumerate(states)]
        slots = [member(index, number) for index in range(len(states)) for number in (1, 0)]
        tries = [rollout(f"u{index}", index) for index in range(len(states))]
        notes = [annotation(f"u{index}", index, "judge") for index in range(len(states))]
        sessions = [SessionRecord(run="demo", session=f"s{index}", worker="w", expires_at=0.0, ended=index == 1) for index in range(3)]
        updates = [record for update in range(12) for record in (plan(update), outcome(update), Version(run="demo", version=update, digest="w"))]
        checkpoints = [checkpoint(0), checkpoint(4, kept=False), checkpoint(9), checkpoint(10, kept=False)]
        store.submit([RUN, *reversed(groups), *slots, *tries, *notes, *reversed(sessions), *reversed(updates), *checkpoints])
        rig.settle(store)
        snapshot = store.load("demo")
        assert snapshot is not None
        assert [found.state for found in snapshot.groups] == [GroupState.OPEN, GroupState.COMPLETE, GroupState.READY, GroupState.BOUND]
        assert [(slot.group_id, slot.member) for slot in snapshot.members] == [("src/0/0", 0), ("src/0/0", 1), ("src/0/1", 0), ("src/0/1", 1)]
        assert [found.uid for found in snapshot.rollouts] == ["u0", "u1"]
        assert [note.rollout_uid for note in snapshot.annotations] == ["u0", "u1"]
        assert [session.session for session in snapshot.sessions] == ["s0", "s2"]
        assert [found.update for found in snapshot.plans] == [8, 9, 10, 11]
        assert [found.update for found in snapshot.outcomes] == [found.version for found in snapshot.versions] == list(range(12))
        assert [found.update for found in snapshot.checkpoints] == [0, 9]
        store.close()

    def test_cursors_are_the_largest_pass_and_index_of_each_source(self, rig: Rig) -> None:
        store = rig.open()
        ids = ["a/0/9", "a/1/2", "a/1/10", "a/0/99", "deep/er/3/4", "plain", "x/y", "a/1/-5", "b/0/0"]
        store.submit([RUN, *(group(index, id=name) for index, name in enumerate(ids))])
        rig.settle(store)
        snapshot = store.load("demo")
        assert snapshot is not None
        assert snapshot.cursors == {"a": (1, 10), "deep/er": (3, 4), "b": (0, 0)}
        assert snapshot.last_order == len(ids) - 1
        assert snapshot.last_ready_order == -1
        store.close()

    @pytest.mark.parametrize("seed", range(4))
    def test_a_snapshot_equals_a_slow_recount(self, rig: Rig, seed: int) -> None:
        story = _story(random.Random(seed))
        store = rig.open()
        for records in story[: len(story) // 2]:
            store.submit(records)
        rig.settle(store)
        for records in story[len(story) // 2 :]:
            store.submit(records)
        rig.settle(store)
        expected = _recount([record for records in story for record in records])
        assert store.load("demo") == expected
        store.close()
        store = rig.open()
        assert store.load("demo") == expected
        store.close()


def _episode(run: str, index: int, body: bytes) -> list[Record]:
    """A change set with several records, to see that none comes without the others."""
    records = [group(index), member(index, 0), rollout(f"u{index}", index), entry("e", index, body)]
    return [*(replace(record, run=run) for record in records), payload(f"u{index}", body, run=run)]


def _story(rng: random.Random) -> list[list[Record]]:
    """Change sets in which groups and members go through states at random."""
    story: list[list[Record]] = [[RUN]]
    kinds = [(environment, purpose) for environment in ("digits", "math") for purpose in (Purpose.TRAIN, Purpose.EVAL)]
    for step in range(150):
        index = rng.randrange(40)
        environment, purpose = kinds[index % 4]
        state = rng.choice(list(GroupState))
        ready = rng.random() < 0.5
        changed = group(
            index,
            state,
            environment=environment,
            purpose=purpose,
            reason=rng.choice(["stale", "too_few"]) if state is GroupState.DROPPED or rng.random() < 0.1 else None,
            tokens=rng.randrange(100),
            longest=rng.randrange(50),
            ready_at=float(step) if ready else None,
            ready_order=step if ready else None,
        )
        slot_state = rng.choice(list(MemberState))
        slot = member(index, rng.randrange(3), slot_state, reason=rng.choice(["worker_lost", "engine", None]), retry=step)
        story.append([slot, changed, rollout(f"u{step}", index, slot.member, step), annotation(f"u{step}", index, "judge", rng.choice([None, 0, 1]))])
    return story


def _recount(records: Sequence[Record]) -> Snapshot:
    """What `load` must give, the obvious way."""
    groups: dict[str, GroupRecord] = {}
    members: dict[tuple[str, int], MemberRecord] = {}
    rollouts: list[RolloutRecord] = []
    notes: list[AnnotationRecord] = []
    for record in records:
        if isinstance(record, GroupRecord):
            groups[record.id] = record
        elif isinstance(record, MemberRecord):
            members[record.group_id, record.member] = record
        elif isinstance(record, RolloutRecord):
            rollouts.append(record)
        elif isinstance(record, AnnotationRecord):
            notes.append(record)
    in_order = sorted(groups.values(), key=lambda each: each.order)
    growing = [each for each in in_order if each.state in ("open", "complete")]
    slots_of = {each.id: sorted((slot for slot in members.values() if slot.group_id == each.id), key=lambda slot: slot.member) for each in in_order}
    tries_of = {each.id: sorted((one for one in rollouts if one.group_id == each.id), key=lambda one: (one.member, one.retry)) for each in in_order}
    notes_of = {each.id: sorted((note for note in notes if note.group_id == each.id), key=lambda note: note.rollout_uid) for each in in_order}
    return Snapshot(
        run=RUN,
        groups=tuple(each for each in in_order if each.state not in ("spent", "dropped")),
        members=tuple(slot for each in growing for slot in slots_of[each.id]),
        rollouts=tuple(one for each in growing for one in tries_of[each.id]),
        annotations=tuple(note for each in growing for note in notes_of[each.id]),
        sessions=(),
        term=None,
        plans=(),
        outcomes=(),
        versions=(),
        checkpoints=(),
        tallies={key: _tally([each for each in in_order if (each.environment, each.purpose) == key], slots_of) for key in _kinds(in_order)},
        last_order=max(each.order for each in in_order),
        last_ready_order=max((each.ready_order for each in in_order if each.ready_order is not None), default=-1),
        cursors={"src": max((0, each.order) for each in in_order)},
    )


def _kinds(groups: Sequence[GroupRecord]) -> set[tuple[str, Purpose]]:
    return {(each.environment, each.purpose) for each in groups}


def _tally(groups: Sequence[GroupRecord], slots_of: dict[str, list[MemberRecord]]) -> Tally:
    dropped = [each for each in groups if each.state == "dropped"]
    slots = [slot for each in groups for slot in slots_of[each.id]]
    return Tally(
        groups=Counter((each.state, each.reason if each in dropped else None) for each in groups),
        members=Counter((slot.state, slot.reason if slot.state == "failed" else None) for slot in slots),
        ready_groups=sum(each.ready_at is not None for each in groups),
        ready_tokens=sum(each.tokens for each in groups if each.ready_at is not None),
        dropped_longest={reason: sum(each.longest for each in dropped if each.reason == reason) for reason in {each.reason for each in dropped} if reason},
    )
