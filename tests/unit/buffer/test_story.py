"""What `where` tells: everything that happened, whoever had a hand in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.buffer.compat.config import CompatConfig
from penstock.buffer.compat.service import CompatService
from penstock.buffer.core import Buffer
from penstock.buffer.service import BufferService
from penstock.buffer.store import SqliteStore
from penstock.buffer.telling import tell
from penstock.errors import InvalidError, UnknownError
from penstock.types import CutRequest, Laws, LeaseRequest, Payload, Purpose, RolloutRecord, RolloutStatus


async def test_what_one_decision_did_is_told_in_the_order_in_which_it_came_about(tmp_path: Path) -> None:
    service = BufferService(SqliteStore(tmp_path / "store.sqlite"), expire_seconds=60.0, max_waiting=8)
    async with service.running():
        compat = CompatService(service, CompatConfig(group_size=2))
        # Both at once: the group is opened, filled and complete at the same moment.
        await compat.write(b'[{"uid": "a", "instance_id": "i", "messages": [], "reward": 1}, {"uid": "b", "instance_id": "i", "messages": [], "reward": 0}]')
        batch = await compat.reader.read(None)
        assert batch.items is not None
        told = [re.split(r"[ :]", event.what, maxsplit=1)[0] for event in tell(service.buffer, "default", "i/0").events]
        assert told == ["opened", "member", "member", "complete", "ready", "taken", "lease", "spent"]
        assert "with 1 group" in {event.what[-12:] for event in tell(service.buffer, "default", "i/0").events}


class Stage:
    """A buffer over a real file, on a clock that is moved by hand."""

    def __init__(self, path: Path, laws: Laws | None = None) -> None:
        self.now = 100.0
        self.store = SqliteStore(path)
        self.buffer = Buffer(self.store, lambda: self.now)
        self.buffer.open_run("run", laws or Laws(), "weights-0")
        self.buffer.open_group("run", "g/0/0", environment="env", problem_id="p", purpose=Purpose.TRAIN, size=2, seed=0, first_estimate=10)

    def write(self, member: int, retry: int = 0) -> None:
        uid = f"u{member}-{retry}"
        facts = RolloutRecord(
            run="run",
            uid=uid,
            group_id="g/0/0",
            member=member,
            retry=retry,
            status=RolloutStatus.OK,
            digest="d",
            tokens=5,
            oldest_version=0,
            versions=(0,),
            reward=1.0,
        )
        self.buffer.accept("run", facts, Payload(run="run", uid=uid, content_type="json", body=b"bytes", digest="d"))

    def told(self, asked: str) -> list[tuple[float, str]]:
        """Seconds and words, without what every story has."""
        common = ("opened", "complete", "ready:", "spent")
        return [(event.at, event.what) for event in tell(self.buffer, "run", asked).events if not event.what.startswith(common)]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path / "store.sqlite")
    yield stage
    stage.store.close()


def test_tries_that_were_lost_with_their_worker_are_told(stage: Stage) -> None:
    for session, ends_at in (("a", 105.0), ("b", 125.0)):
        stage.buffer.open_session("run", session, f"worker-{session}")
        stage.buffer.claim("run", session, 1)
        stage.now = ends_at
        stage.buffer.release("run", session) if session == "a" else stage.buffer.expire()
    stage.write(0, retry=2)
    assert stage.told("g/0/0#0") == [
        (100.0, "member 0: try 0 was claimed by worker-a"),
        (105.0, "member 0: try 0 was given up: worker-a left before it was done"),
        (105.0, "member 0: try 1 was claimed by worker-b"),
        (125.0, "member 0: try 1 was given up: worker-b was not heard of any more"),
        (125.0, "member 0: try 2 stored as u0-2, ok, reward 1, 0 sampled tokens of version 0"),
    ]
    assert stage.told("g/0/0#1") == []
    assert [what for _, what in stage.told("u0-2")] == ["member 0: try 2 stored as u0-2, ok, reward 1, 0 sampled tokens of version 0"]


def test_leases_that_came_to_nothing_are_told(stage: Stage) -> None:
    stage.write(0), stage.write(1)
    stage.buffer.take_lease("run", "one", "slow", LeaseRequest(seconds=5.0))
    stage.now = 106.0
    stage.buffer.expire_leases()
    stage.buffer.take_lease("run", "two", "picky", LeaseRequest())
    stage.buffer.release_lease("run", "two", "picky")
    stage.buffer.take_lease("run", "three", "keen", LeaseRequest())
    story = tell(stage.buffer, "run", "g/0/0")
    assert ([lease.lease for lease in story.former_leases], story.lease is not None and story.lease.lease) == (["one", "two"], "three")
    assert [what for _, what in stage.told("g/0/0")[2:]] == [
        "taken by slow under lease one (number 1) with 1 group",
        "lease one has expired: ready again",
        "taken by picky under lease two (number 2) with 1 group",
        "lease two was released: ready again",
        "taken by keen under lease three (number 3) with 1 group",
    ]


def test_an_update_that_was_skipped_or_undone_is_told(stage: Stage) -> None:
    stage.write(0), stage.write(1)
    stage.buffer.keep("run", 0, "c0", stage.buffer.take_term("run", "learner", 0).reply.term)
    stage.buffer.cut("run", 0, 1, CutRequest(groups_per_update=1))
    stage.now = 150.0
    stage.buffer.take_term("run", "next", 0, resume="recut")
    (undone,) = tell(stage.buffer, "run", "g/0/0").updates
    assert (undone.update, undone.term, undone.undone) == (0, 1, True)
    stage.buffer.cut("run", 0, 2, CutRequest(groups_per_update=1))
    stage.buffer.record("run", 0, 2, skipped="mismatch")
    assert [what for _, what in stage.told("g/0/0")[2:]] == [
        "cut into update 0 under term 2; the newest version was 0",
        "update 0 was recorded: skipped: mismatch",
        "dropped: skipped:mismatch",
    ]


async def test_items_are_found_by_what_they_were_written_with(tmp_path: Path) -> None:
    service = BufferService(SqliteStore(tmp_path / "store.sqlite"), expire_seconds=60.0, max_waiting=8)
    async with service.running():
        compat = CompatService(service, CompatConfig(group_size=3))
        long = "x" * 300
        for uid, instance in (("ü 1", "weiß #2"), (long, "weiß #2"), ("u3", "plain")):
            await compat.write(json.dumps({"uid": uid, "instance_id": instance, "messages": [], "reward": 1}).encode())
        group = tell(service.buffer, "default", "weiß #2/0").group
        assert (group.id, group.usable, group.pending) == ("wei%C3%9F%20%232/0", 2, 1)
        assert tell(service.buffer, "default", "ü 1").members[0].tries[0].rollout.uid == "%C3%BC%201"
        assert [tell(service.buffer, "default", asked).kind for asked in (long, "weiß #2/0#1", "wei%C3%9F%20%232/0#1")] == ["rollout", "member", "member"]
        with pytest.raises(UnknownError, match="one for each pass: ask for plain/0"):
            tell(service.buffer, "default", "plain")
        for wrong in ("", "a\nb", "\ud800", "y" * 5000):
            with pytest.raises(InvalidError, match="printable"):
                tell(service.buffer, "default", wrong)
