"""Every verb of the client through a network that loses each first answer: it is sent again, and happens once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from tests.services.buffers import Process, group, rollout

from penstock.buffer.client import BufferClient, api
from penstock.types import Annotation, CutRequest, Laws, LeaseRequest


class Forgetful:
    """Passes requests on, and hangs up instead of giving the answer, every other time."""

    def __init__(self, port: int) -> None:
        self.port, self.lost, self._seen = port, 0, 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            head = await reader.readuntil(b"\r\n\r\n")
            length = next((int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0)
            body = await reader.readexactly(length)
            upstream, out = await asyncio.open_connection("127.0.0.1", self.port)
            out.write(head.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1) + body)
            answer = await upstream.read()
            out.close()
            self._seen += 1
            if self._seen % 2:
                self.lost += 1
            else:
                writer.write(answer)
                await writer.drain()
        writer.close()


@pytest_asyncio.fixture
async def network(tmp_path: Path) -> AsyncIterator[tuple[Forgetful, BufferClient]]:
    process = Process(tmp_path)
    forgetful = Forgetful(process.port)
    server = await asyncio.start_server(forgetful.handle, "127.0.0.1", 0)
    async with BufferClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "run", deadline_seconds=20) as client:
        yield forgetful, client
    server.close()
    process.kill()


async def test_what_is_sent_twice_happens_once(network: tuple[Forgetful, BufferClient]) -> None:
    forgetful, client = network
    await client.open_run(Laws(annotations=("judge",)), "0" * 32)
    assert (await client.open_groups([group(index) for index in range(3)])).opened == 3
    await client.open_session("s", "worker")
    slots = await client.claim("s", 4)
    assert [(slot.group_id, slot.member) for slot in slots] == [("s/0/0", 0), ("s/0/0", 1), ("s/0/1", 0), ("s/0/1", 1)]
    answers = await client.write([rollout(slot.group_id, slot.member) for slot in slots])
    assert [(answer.code, answer.duplicate) for answer in answers] == [(None, True)] * 4
    await client.append_journal("episode", 0, [b'{"a": 1}'])
    assert len(await client.journal("episode")) == 1
    lost = await client.take_work(api.TakeWork(lease="w0", consumer="enricher", count=1))
    assert await client.release_work("w0", "enricher") is False
    work = await client.take_work(api.TakeWork(lease="w", consumer="enricher", count=4))
    assert len(lost.items) == 1
    assert len(work.items) == 4
    for item in work.items:
        await client.annotate(Annotation(run="run", rollout_uid=item.rollout_uid, name="judge"))
    first = await client.take_lease("a", "trainer", LeaseRequest(groups=1))
    assert first.lease is not None
    await client.renew_lease("a", "trainer")
    await client.release_lease("a", "trainer")
    again = await client.take_lease("b", "trainer", LeaseRequest(groups=1))
    assert again.lease is not None
    assert (again.lease.groups, again.lease.fence) == (first.lease.groups, first.lease.fence + 1)
    assert len(await client.lease_groups(again.lease)) == 1
    assert (await client.settle_lease("b", "trainer")).state == "settled"
    term = (await client.take_term(api.TakeTerm(owner="learner", checkpoint=0))).term
    cut = await client.cut(0, term, CutRequest(groups_per_update=1))
    assert cut.plan is not None
    assert [planned.id for planned in cut.plan.groups] == ["s/0/1"]
    recorded = await client.record(0, term, digest="1" * 32)
    assert (recorded.outcome.version, recorded.equal) == (1, True)
    await client.publish(1, term)
    await client.keep(1, "c" * 32, term)
    await client.release("s")
    ledger = await client.ledger()
    assert (ledger.balances[0].groups, ledger.imbalance) == ({"open": 1, "spent": 2}, 0)
    assert [version.version for version in await client.versions()] == [0, 1]
    assert forgetful.lost > 20
