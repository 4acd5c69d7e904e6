"""What every `Store` must give to a ledger that starts: counts and all that is under way. Part of `store_contract.py`."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest
from tests.services.store_stage import RUN, Rig, annotation, checkpoint, group, member, outcome, plan, rollout

from penstock.types import (
    AnnotationRecord,
    GroupRecord,
    GroupState,
    MemberRecord,
    MemberState,
    Purpose,
    Record,
    RolloutRecord,
    SessionRecord,
    Snapshot,
    Tally,
    Version,
)


class SnapshotContract:
    """`Store.load`."""

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
            filled=rng.randrange(4),
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
    members = Counter((slot.state, slot.reason if slot.state == "failed" else None) for slot in slots)
    members.update({(MemberState.ACCEPTED, None): sum(each.filled for each in groups), (MemberState.PENDING, None): -sum(each.filled for each in groups)})
    return Tally(
        groups=Counter((each.state, each.reason if each in dropped else None) for each in groups),
        members={place: count for place, count in members.items() if count},
        ready_groups=sum(each.ready_at is not None for each in groups),
        ready_tokens=sum(each.tokens for each in groups if each.ready_at is not None),
        dropped_longest={reason: sum(each.longest for each in dropped if each.reason == reason) for reason in {each.reason for each in dropped} if reason},
    )
