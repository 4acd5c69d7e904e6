"""Work of enrichment, for all runs of a buffer."""

from __future__ import annotations

from tests.unit.buffer.test_core import annotate, buffer_on, open_group, rollout_of

from penstock.buffer.working import WorkDesk
from penstock.ledger.work import WorkRequest
from penstock.testing.disk import FakeDisk
from penstock.types import Laws


def test_what_a_failed_disk_has_lost_is_handed_out_again() -> None:
    disk = FakeDisk(seed=0)
    buffer, store = buffer_on(disk)
    desk = WorkDesk(lambda: 0.0)

    def taken(lease: str) -> list[str]:
        return [item.rollout_uid for item in desk.take(buffer, "run", WorkRequest(lease=lease, consumer="me", count=8, seconds=10.0)).reply.items]

    buffer.open_run("run", Laws(annotations=("judge", "score")), "weights-0")
    open_group(buffer)
    buffer.accept_all("run", [rollout_of(0), rollout_of(1)])
    store.sync_now()
    assert taken("first") == ["u0", "u1"]
    for member in range(2):
        annotate(buffer, member)
    desk.release(buffer, "run", "first", "me")
    assert taken("second") == ["u0", "u1"]
    assert taken("third") == []
    disk.crash()
    buffer.reopen()
    assert desk.take(buffer, "run", WorkRequest(lease="fourth", consumer="me", count=8, seconds=10.0)).reply.items[0].missing == ("judge",)
