"""A group of which a record was damaged while it grew, or that lost its lease, is never given as something else than was written: it is dropped, and told."""

from __future__ import annotations

import contextlib
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.buffer.archiving import RUN, done, open_group, open_run, rollout, write

from penstock.buffer.checks import check_store
from penstock.buffer.core import Buffer
from penstock.buffer.store import SqliteStore
from penstock.buffer.telling import tell
from penstock.errors import CorruptError
from penstock.ledger import balance, imbalance, recount
from penstock.types import GroupState, LeaseRecord, LeaseRequest, ReaderRecord


def torn(tmp_path: Path, statement: str, *, members: int = 1, annotations: tuple[str, ...] = ()) -> Buffer:
    """A buffer with one whole group of two and one with `members` of two, opened after `statement` has damaged something."""
    path = tmp_path / "store.sqlite"
    store = SqliteStore(path)
    buffer = Buffer(store, iter(range(10**6)).__next__)
    open_run(buffer, annotations=annotations)
    for index, filled in enumerate((2, members)):
        open_group(buffer, index)
        for member in range(filled):
            write(buffer, rollout(index, member))
    store.close()
    with contextlib.closing(sqlite3.connect(path)) as tampered, tampered:
        assert tampered.execute(statement).rowcount == 1
    return Buffer(SqliteStore(path), iter(range(100, 10**6)).__next__)


@pytest.mark.parametrize(
    ("statement", "members", "annotations"),
    [
        ("UPDATE rollouts SET checksum = 0 WHERE uid = 'env/0/1:0:0'", 1, ()),
        ("UPDATE rollouts SET checksum = 0 WHERE uid = 'env/0/1:1:0'", 2, ("judge",)),
        ("DELETE FROM rollouts WHERE uid = 'env/0/1:0:0'", 1, ()),
    ],
)
def test_a_group_that_lost_a_rollout_is_dropped_and_adds_up(tmp_path: Path, statement: str, members: int, annotations: tuple[str, ...]) -> None:
    buffer = torn(tmp_path, statement, members=members, annotations=annotations)
    assert imbalance(buffer.ledger(RUN)) == 0, "already before it is dropped it counts what it has"
    (dropped,) = buffer.drop_torn()
    assert [(group.id, group.state, group.reason) for group in dropped.reply] == [("env/0/1", GroupState.DROPPED, "damaged")]
    assert buffer.drop_torn() == []
    done(buffer, dropped)
    again = Buffer(buffer.store, lambda: 200.0)
    groups = list(buffer.store.scan_groups(RUN))
    slots = [slot for group in groups for slot in buffer.store.members(RUN, group.id)]
    for ledger in (buffer.ledger(RUN), again.ledger(RUN)):
        assert balance(ledger) == recount(groups, slots)
        assert balance(ledger)[0].members == {"accepted": 1 + members, "failed(group_dropped)": 3 - members}
        assert (imbalance(ledger), ledger.counts["env", groups[0].purpose].held_groups) == (0, 1)


def test_a_slot_whose_record_is_damaged_is_as_it_was_issued(tmp_path: Path) -> None:
    buffer = torn(tmp_path, "UPDATE members SET checksum = 0 WHERE group_id = 'env/0/1' AND member = 0")
    assert buffer.drop_torn() == []
    ledger = buffer.ledger(RUN)
    assert [(slot.member, slot.state, slot.uid) for slot in ledger.members["env/0/1"]] == [(0, "accepted", "env/0/1:0:0"), (1, "pending", None)]
    write(buffer, rollout(1, 1))
    assert ledger.groups["env/0/1"].state is GroupState.READY
    assert imbalance(ledger) == 0


def test_a_group_that_has_got_again_what_it_lost_is_left_alone(tmp_path: Path) -> None:
    buffer = torn(tmp_path, "UPDATE rollouts SET checksum = 0 WHERE uid = 'env/0/1:0:0'")
    write(buffer, replace(rollout(1, 0), rollout_uid="again"))
    write(buffer, rollout(1, 1))
    assert buffer.drop_torn() == []
    assert (imbalance(buffer.ledger(RUN)), buffer.ledger(RUN).groups["env/0/1"].state) == (0, GroupState.READY)


def test_a_whole_group_is_left_alone(tmp_path: Path) -> None:
    buffer = torn(tmp_path, "UPDATE rollouts SET checksum = 0 WHERE uid = 'env/0/0:0:0'")
    assert buffer.drop_torn() == []
    assert (imbalance(buffer.ledger(RUN)), buffer.ledger(RUN).groups["env/0/0"].state) == (0, GroupState.READY)


def test_groups_of_a_lease_that_is_damaged_are_dropped_and_others_are_served(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    store = SqliteStore(path)
    buffer = Buffer(store, iter(range(10**6)).__next__)
    open_run(buffer)
    for index in range(3):
        open_group(buffer, index)
        for member in range(2):
            write(buffer, rollout(index, member))
    for lease in ("torn", "whole"):
        done(buffer, buffer.take_lease(RUN, lease, "me", LeaseRequest(groups=1)))
    store.close()
    with contextlib.closing(sqlite3.connect(path)) as tampered, tampered:
        assert tampered.execute("UPDATE facts SET body = zeroblob(3) WHERE kind = 'lease' AND key = 'torn'").rowcount == 1
    buffer = Buffer(SqliteStore(path), iter(range(100, 10**6)).__next__)
    (dropped,) = buffer.drop_torn()
    assert [(group.id, group.state, group.reason) for group in dropped.reply] == [("env/0/0", GroupState.DROPPED, "damaged")]
    done(buffer, dropped)
    assert buffer.drop_torn() == []
    with pytest.raises(CorruptError, match="lease 'lease torn'"):
        buffer.settle_lease(RUN, "torn", "me")
    done(buffer, buffer.settle_lease(RUN, "whole", "me"))
    next_one = done(buffer, buffer.take_lease(RUN, "next", "me", LeaseRequest()))
    assert isinstance(next_one, LeaseRecord)
    assert ([planned.id for planned in next_one.groups], next_one.fence) == (["env/0/2"], 3)
    assert imbalance(buffer.ledger(RUN)) == 0
    told = tell(buffer, RUN, "env/0/0")
    assert (told.lease, told.group.lease, told.events[-1].what) == (None, "torn", "dropped: damaged")
    buffer.store.close()
    broken = [sentence for finding in check_store(path)[RUN] for sentence in finding.broken]
    assert [sentence.partition(";")[0] for sentence in broken] == ["lease 'lease torn' of run 'demo' fails its checksum"]


def test_a_reader_whose_record_is_damaged_begins_anew(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.sqlite")
    buffer = Buffer(store, iter(range(10**6)).__next__)
    open_run(buffer)
    store.submit([ReaderRecord(run=RUN, reader="me", read_id="read-1")]).result(30)
    store.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "store.sqlite")) as tampered, tampered:
        assert tampered.execute("UPDATE facts SET checksum = 0 WHERE kind = 'reader'").rowcount == 1
    buffer = Buffer(SqliteStore(tmp_path / "store.sqlite"), iter(range(100, 10**6)).__next__)
    assert (buffer.ledger(RUN).readers, len(buffer.store.corrupt())) == ({}, 1)
