"""What the buffer must not forget, and must not tell too early, when its store fails or starts again."""

from __future__ import annotations

import pytest

from penstock.buffer.core import Buffer
from penstock.errors import ConflictError, StoreError
from penstock.testing.disk import FakeDisk
from penstock.testing.store import MemoryStore
from penstock.types import AnnotationRecord, Laws, Payload, Purpose, RolloutRecord, RolloutStatus


def buffer_on(disk: FakeDisk) -> tuple[Buffer, MemoryStore]:
    store = MemoryStore(disk)
    return Buffer(store, lambda: 0.0), store


def open_group(buffer: Buffer, group_id: str = "g/0/0") -> None:
    buffer.open_group("run", group_id, environment="env", problem_id="p", purpose=Purpose.TRAIN, size=2, seed=0, first_estimate=10)


def write(buffer: Buffer, member: int) -> None:
    uid, body = f"u{member}", b"bytes"
    rollout = RolloutRecord(
        run="run", uid=uid, group_id="g/0/0", member=member, retry=0, status=RolloutStatus.OK, digest="d", tokens=5, oldest_version=0, versions=(0,)
    )
    buffer.accept("run", rollout, Payload(run="run", uid=uid, content_type="json", body=body, digest="d"))


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
