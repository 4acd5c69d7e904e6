"""What the buffer must not forget, and must not tell too early, when its store fails or starts again."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from penstock.buffer.core import Buffer
from penstock.buffer.store.sqlite import SqliteStore
from penstock.errors import ConflictError, InvalidError, LimitError, StoreError
from penstock.ledger import Accepted
from penstock.ledger.arrivals import ArrivalRules
from penstock.testing.arrivals import item_of
from penstock.testing.disk import FakeDisk
from penstock.testing.store import MemoryStore
from penstock.types import AnnotationRecord, Laws, Payload, Purpose, RolloutRecord, RolloutStatus


def buffer_on(disk: FakeDisk) -> tuple[Buffer, MemoryStore]:
    store = MemoryStore(disk)
    return Buffer(store, lambda: 0.0), store


def open_group(buffer: Buffer, group_id: str = "g/0/0") -> None:
    buffer.open_group("run", group_id, environment="env", problem_id="p", purpose=Purpose.TRAIN, size=2, seed=0, first_estimate=10)


def write(buffer: Buffer, member: int) -> None:
    buffer.accept("run", *rollout_of(member))


def rollout_of(member: int, group_id: str = "g/0/0", **facts: Any) -> tuple[RolloutRecord, Payload]:
    uid = f"u{member}" if group_id == "g/0/0" else f"{group_id}:{member}"
    rollout = RolloutRecord(
        run="run", uid=uid, group_id=group_id, member=member, retry=0, status=RolloutStatus.OK, digest="d", tokens=5, oldest_version=0, versions=(0,), **facts
    )
    return rollout, Payload(run="run", uid=uid, content_type="json", body=b"bytes", digest="d")


def annotate(buffer: Buffer, member: int, digest: str = "a") -> bool:
    """Whether it was a duplicate."""
    uid = f"u{member}+judge+{digest}"
    found = AnnotationRecord(run="run", rollout_uid=f"u{member}", group_id="g/0/0", name="judge", step=None, uid=uid, digest=digest)
    return buffer.annotate("run", found, Payload(run="run", uid=uid, content_type="json", body=b"", digest=digest)).reply.duplicate


def test_annotations_of_an_open_group_survive_a_restart() -> None:
    disk = FakeDisk()
    buffer, store = buffer_on(disk)
    buffer.open_run("run", Laws(annotations=("judge",)), "weights-0")
    open_group(buffer)
    write(buffer, 0)
    annotate(buffer, 0)
    store.sync_now()
    again, _ = buffer_on(disk)
    assert annotate(again, 0)
    with pytest.raises(ConflictError, match="other content"):
        annotate(again, 0, digest="b")
    write(again, 1)
    annotate(again, 1)
    assert again.ledger("run").groups["g/0/0"].state == "ready"


def test_the_time_that_a_store_was_down_is_no_silence_of_an_open_group() -> None:
    disk, rules, times = FakeDisk(), ArrivalRules(group_size=2, group_timeout_seconds=300.0), [0.0]
    store = MemoryStore(disk)
    buffer = Buffer(store, lambda: times[0])
    buffer.open_run("run", Laws(), "weights-0")
    buffer.arrive("run", rules, item_of("u", "a", 1.0))
    store.sync_now()
    times[0] = 1000.0
    again = Buffer(MemoryStore(disk), lambda: times[0])
    times[0] = 1299.0
    assert again.time_out("run", rules, "env").reply == ()
    times[0] = 1300.0
    assert [group.reason for group in again.time_out("run", rules, "env").reply] == ["timeout"]


def test_nothing_is_settled_before_the_newest_decision_is_durable() -> None:
    buffer, store = buffer_on(FakeDisk())
    buffer.open_run("run", Laws(), "weights-0")
    assert not buffer.settled().done()
    store.sync_now()
    assert buffer.settled().done()
    buffer.open_session("run", "s", "worker")
    assert not buffer.settled().done()


def test_a_failed_commit_stops_every_verb_until_the_store_is_reopened() -> None:
    disk = FakeDisk()
    buffer, store = buffer_on(disk)
    buffer.open_run("run", Laws(), "weights-0")
    store.sync_now()
    disk.refuses_writes = True
    open_group(buffer)
    for verb in (lambda: buffer.ledger("run"), lambda: open_group(buffer, "g/0/1"), lambda: buffer.renew_term("run", 1)):
        with pytest.raises(StoreError):
            verb()
    disk.refuses_writes = False
    buffer.reopen()
    assert buffer.ledger("run").groups == {}
    open_group(buffer)


def test_rollouts_that_come_together_are_one_change_of_the_store(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.sqlite")
    buffer = Buffer(store, lambda: 3.0)
    buffer.open_run("run", Laws(), "weights-0")
    open_group(buffer)
    pending = buffer.accept_all("run", [rollout_of(0), rollout_of(2), rollout_of(1)])
    pending.durable.result()
    first, refused, last = pending.reply
    assert isinstance(refused, ConflictError)
    assert [answer.rollout.stored_at for answer in (first, last) if isinstance(answer, Accepted)] == [3.0, 3.0]
    store.close()
    again = Buffer(SqliteStore(tmp_path / "store.sqlite", read_only=True), lambda: 0.0)
    assert again.ledger("run").groups["g/0/0"].state == "ready"
    assert [rollout.uid for rollout in again.store.rollouts("run", "g/0/0")] == ["u0", "u1"]
    assert not buffer.accept_all("run", []).changed


def test_what_the_store_cannot_keep_does_not_keep_the_others_out(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.sqlite")
    buffer = Buffer(store, lambda: 0.0)
    buffer.open_run("run", Laws(), "weights-0")
    open_group(buffer)
    first, refused = buffer.accept_all("run", [rollout_of(0), rollout_of(1, failure="\ud800")]).reply
    assert isinstance(first, Accepted)
    assert isinstance(refused, InvalidError)
    assert buffer.ledger("run").groups["g/0/0"].pending == 1
    (then,) = buffer.accept_all("run", [rollout_of(1)]).reply
    assert isinstance(then, Accepted)
    store.close()


def test_too_much_that_waits_refuses_each_of_those_that_came_together() -> None:
    disk = FakeDisk()
    buffer, store = buffer_on(disk)
    buffer.open_run("run", Laws(), "weights-0")
    open_group(buffer)
    full: Future[None] = Future()
    full.set_exception(LimitError("full"))
    taking, store.submit = store.submit, lambda records: full  # type: ignore[method-assign]
    refused = buffer.accept_all("run", [rollout_of(0), rollout_of(1)])
    assert [type(answer) for answer in refused.reply] == [LimitError, LimitError]
    assert not refused.changed
    store.submit = taking  # type: ignore[method-assign]
    assert all(isinstance(answer, Accepted) for answer in buffer.accept_all("run", [rollout_of(0), rollout_of(1)]).reply)


def test_groups_that_come_together_make_room_for_each_other() -> None:
    buffer, _ = buffer_on(FakeDisk())
    buffer.open_run("run", Laws(capacity_rollouts={"env": 2}), "weights-0")
    groups = [f"g/0/{number}" for number in range(3)]
    for group in groups:
        open_group(buffer, group)
    answers = buffer.accept_all("run", [rollout_of(member, group) for group in groups for member in (0, 1)]).reply
    assert all(isinstance(answer, Accepted) for answer in answers)
    assert [buffer.ledger("run").find_group(buffer.store, group).state for group in groups] == ["dropped", "dropped", "ready"]  # type: ignore[union-attr]
