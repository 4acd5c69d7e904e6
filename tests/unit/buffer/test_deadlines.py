"""Time in which a buffer could hear nobody counts for no deadline: it was stopped, or busy with one thing."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.requests import Request as HttpRequest
from starlette.types import Message

from penstock.buffer.compat.config import CompatConfig
from penstock.buffer.compat.intake import read_items
from penstock.buffer.compat.state import CompatState
from penstock.buffer.compat.writing import Request, WriteDesk
from penstock.buffer.routes import learning
from penstock.buffer.service import BufferService
from penstock.buffer.store import SqliteStore
from penstock.errors import ConflictError
from penstock.ledger.work import WorkRequest
from penstock.types import Laws, LeaseRequest, Payload, Purpose, RolloutRecord, RolloutStatus, RunRecord

EXPIRE_SECONDS = 0.5


class Watched:
    """A buffer whose clock is moved by hand, and whose deadlines are looked at by hand."""

    def __init__(self, directory: Path) -> None:
        self.at = 1000.0
        self.service = BufferService(SqliteStore(directory / "store.sqlite"), expire_seconds=EXPIRE_SECONDS, max_waiting=8, now=lambda: self.at)

    def look(self) -> list[str]:
        """What a look at the deadlines ends."""
        service = self.service
        service.catch_up()
        ended = [f"session {session.session}" for pending in service.buffer.expire() for session in pending.reply]
        ended += [f"lease {lease.lease}" for pending in service.buffer.expire_leases() for lease in pending.reply]
        return ended + [f"work {lease.lease}" for lease in service.work.expire()]

    def look_for(self, seconds: float) -> list[str]:
        """What looks in time end meanwhile."""
        ended = []
        for _ in range(round(seconds / EXPIRE_SECONDS)):
            self.at += EXPIRE_SECONDS
            ended += self.look()
        return ended


async def fill(service: BufferService, annotations: tuple[str, ...]) -> None:
    """A group that is complete, and another of which a session has a slot."""
    await service.told(lambda buffer: buffer.open_run("run", Laws(annotations=annotations), "weights"))
    for index in range(2):
        await service.told(
            lambda buffer, index=index: buffer.open_group(  # type: ignore[misc]
                "run", f"g/0/{index}", environment="env", problem_id="p", purpose=Purpose.TRAIN, size=2, seed=0, first_estimate=1
            )
        )
    for member in range(2):
        facts = RolloutRecord(
            run="run",
            uid=f"u{member}",
            group_id="g/0/0",
            member=member,
            retry=0,
            status=RolloutStatus.OK,
            digest="d",
            tokens=5,
            oldest_version=0,
            versions=(0,),
        )
        payload = Payload(run="run", uid=facts.uid, content_type="json", body=b"{}", digest="d")
        await service.told(lambda buffer, facts=facts, payload=payload: buffer.accept("run", facts, payload))  # type: ignore[misc]
    await service.told(lambda buffer: buffer.open_session("run", "s", "worker"))
    await service.told(lambda buffer: buffer.claim("run", "s", 1))


@pytest.mark.parametrize("names", [(), ("judge",)], ids=["lease", "work"])
async def test_nobody_expires_for_not_having_been_heard(tmp_path: Path, names: tuple[str, ...]) -> None:
    watched = Watched(tmp_path)
    service = watched.service
    async with service.running():
        await fill(service, names)
        if names:
            wanted = WorkRequest(lease="one", consumer="me", seconds=5.0)
            assert (await service.told(lambda buffer: service.work.take(buffer, "run", wanted))).items
        else:
            await service.told(lambda buffer: buffer.take_lease("run", "one", "me", LeaseRequest(seconds=5.0)))
        assert watched.look_for(4.0) == []
        # A minute in which nobody looked: half a second of it counts.
        watched.at += 60.0
        assert watched.look() == []
        assert watched.look_for(0.5) == ["work one" if names else "lease one"]
        # The session had ten seconds.
        assert watched.look_for(4.5) == []
        assert watched.look_for(0.5) == ["session s"]


async def test_a_silence_that_the_buffer_made_ends_no_group_of_items(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    async with watched.service.running():
        state = CompatState(watched.service, CompatConfig(group_size=2, group_timeout_seconds=20.0))
        desk = WriteDesk(state)
        await desk.put(Request(read_items(b'{"uid": "a", "instance_id": "i", "messages": [], "reward": 1}', "default"), 10, int))
        watched.at += 3600.0
        assert await state.time_out() == []
        watched.look_for(19.0)
        assert await state.time_out() == []
        watched.look_for(1.0)
        assert [group.reason for group in await state.time_out()] == ["timeout"]


async def take_term(service: BufferService, owner: str) -> None:
    """As a learner asks for it."""

    async def receive() -> Message:
        return {"type": "http.request", "body": f'{{"owner": "{owner}", "checkpoint": 0}}'.encode(), "more_body": False}

    route = next(operation for operation in learning.OPERATIONS if operation.path.endswith("/term"))
    await route.call(service, HttpRequest({"type": "http", "method": "POST", "headers": [], "path_params": {"run": "run"}}, receive))


async def test_a_learner_is_not_replaced_for_not_having_been_heard(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    service = watched.service
    async with service.running():
        await service.told(lambda buffer: buffer.open_run("run", Laws(), "weights"))
        await take_term(service, "first")
        # Who asks is heard before anybody has looked at the deadlines again.
        watched.at += 3600.0
        with pytest.raises(ConflictError, match="belongs to first"):
            await take_term(service, "second")
        watched.look_for(Laws().term_seconds)
        await take_term(service, "second")


async def test_the_time_that_a_store_takes_to_load_is_no_silence(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    at = [1000.0]

    class Slow(SqliteStore):
        def runs(self) -> tuple[RunRecord, ...]:
            at[0] += 60.0
            return super().runs()

    service = BufferService(Slow(tmp_path / "store.sqlite"), expire_seconds=EXPIRE_SECONDS, max_waiting=8, now=lambda: at[0])
    async with service.running():
        service.catch_up()
    assert caplog.text == ""
