"""The buffer's process over its real socket and file."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path

import pytest
import pytest_asyncio
from tests.services.buffers import Process, group, rollout

from penstock.buffer import api
from penstock.buffer.client import BufferClient
from penstock.errors import ConflictError, FencedError, ForbiddenError, UnauthorizedError, UnknownError
from penstock.types import CutRequest, Laws

_runs = count()


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[Process]:
    """A buffer that the test may kill."""
    running = Process(tmp_path)
    yield running
    running.kill()


@pytest_asyncio.fixture
async def client(process: Process) -> AsyncIterator[BufferClient]:
    """Of a run of its own."""
    async with BufferClient(process.url, f"run-{next(_runs)}") as opened:
        await opened.open_run(Laws(), "0" * 32)
        yield opened


async def test_a_whole_update_goes_through(client: BufferClient) -> None:
    await client.open_groups([group(0)])
    await client.open_session("s1", "worker")
    slots = await client.claim("s1", 8)
    assert [(slot.group_id, slot.member, slot.retry) for slot in slots] == [("s/0/0", 0, 0), ("s/0/0", 1, 0)]
    written = await client.write([rollout(slot.group_id, slot.member, run=client.run) for slot in slots])
    assert [answer.code for answer in written] == [None, None]
    term = (await client.take_term(api.TakeTerm(owner="learner", checkpoint=0))).term
    reply = await client.cut(0, term, CutRequest(groups_per_update=1))
    assert reply.plan is not None
    (fetched,) = await client.fetch(reply.plan)
    assert [list(member.trace.segments[1].ids) for member in fetched.rollouts] == [[4, 5], [4, 6]]
    assert [member.reward for member in fetched.rollouts] == [1.0, 1.0]
    recorded = await client.record(0, term, digest="1" * 32)
    assert (recorded.outcome.version, recorded.replayed) == (1, False)
    await client.publish(1, term)
    await client.keep(1, "c" * 32, term)
    status = await client.status()
    assert (status.newest.version, status.live_version, status.next_update, status.imbalance) == (1, 1, 1, 0)
    assert status.environments["env"].groups == {"spent": 1}
    assert status.environments["env"].held_tokens == 0


async def test_a_cut_waits_for_a_group_and_is_woken_by_the_write(client: BufferClient) -> None:
    term = (await client.take_term(api.TakeTerm(owner="learner", checkpoint=0))).term
    assert (await client.cut(0, term, CutRequest(groups_per_update=1), wait_seconds=0)).waiting == "no ready group"
    waiting = asyncio.create_task(client.cut(0, term, CutRequest(groups_per_update=1), wait_seconds=30))
    await client.open_groups([group(0)])
    await client.write([rollout("s/0/0", member, run=client.run) for member in range(2)])
    assert (await asyncio.wait_for(waiting, 10)).plan is not None


async def test_refusals_arrive_as_the_errors_they_are(client: BufferClient) -> None:
    with pytest.raises(FencedError, match="nobody"):
        await client.beat("nobody")
    with pytest.raises(UnknownError, match="never cut"):
        await client.plan(7)
    with pytest.raises(ConflictError, match="started from weights"):
        await client.open_run(Laws(), "f" * 32)
    answers = await client.write([rollout("s/0/9", 0, run=client.run)])
    assert answers[0].code == "unknown"


async def test_groups_are_opened_as_far_as_credits_last(client: BufferClient) -> None:
    await client.open_run(Laws(credit_tokens=25), "0" * 32)
    opened = await client.open_groups([group(index) for index in range(4)])
    assert (opened.opened, opened.created) == (2, 2)
    assert opened.waiting is not None
    again = await client.open_groups([group(0)])
    assert (again.opened, again.created) == (1, 0)


async def test_groups_wait_for_credit_and_are_opened_when_it_returns(client: BufferClient) -> None:
    await client.open_run(Laws(credit_tokens=25), "0" * 32)
    await client.open_groups([group(0), group(1)])
    waiting = asyncio.create_task(client.open_groups([group(2), group(3)], wait_seconds=30))
    assert (await client.open_groups([group(2)], wait_seconds=0.01)).opened == 0
    assert not waiting.done()
    await client.open_run(Laws(credit_tokens=35), "0" * 32)
    opened = await asyncio.wait_for(waiting, 10)
    assert (opened.opened, opened.created) == (1, 1)
    assert opened.waiting is not None


async def test_what_was_acknowledged_survives_kills_and_is_there_once(mortal: Process) -> None:
    """Eight writers retry through kills; each member is acknowledged and stored exactly once."""
    acknowledged: dict[str, str] = {}
    groups = 40

    async def writer(number: int) -> None:
        async with BufferClient(mortal.url, "run") as own:
            for index in range(number, groups, 8):
                await own.open_groups([group(index)])
                for answer in await own.write([rollout(f"s/0/{index}", member) for member in range(2)]):
                    assert answer.code is None, answer
                    assert answer.uid is not None
                    acknowledged[answer.uid] = answer.digest
                for least, event in enough.items():
                    if len(acknowledged) >= least:
                        event.set()

    enough = {10: asyncio.Event(), 30: asyncio.Event(), 50: asyncio.Event()}

    async def killer() -> None:
        for event in enough.values():
            await event.wait()
            mortal.kill()
            mortal.start()

    async with BufferClient(mortal.url, "run") as first:
        await first.open_run(Laws(credit_tokens=10**6), "0" * 32)
    await asyncio.gather(killer(), *(writer(number) for number in range(8)))
    async with BufferClient(mortal.url, "run") as reader:
        status = await reader.status()
        assert status.environments["env"].groups == {"ready": groups}
        assert status.environments["env"].members == {"accepted": 2 * groups}
        again = await reader.write([rollout("s/0/0", 0)])
        assert again[0].duplicate
        assert again[0].digest == acknowledged["s/0/0:0:0"]
    assert len(acknowledged) == 2 * groups


async def test_it_is_ready_only_by_a_durable_write_and_ends_in_good_order(mortal: Process) -> None:
    async with BufferClient(mortal.url, "run") as client:
        await client.open_run(Laws(), "0" * 32)
        assert mortal.get("/readyz")["ready"] is True
        mortal.child.send_signal(signal.SIGTERM)
        assert mortal.child.wait(10) == 0


def test_a_second_buffer_on_the_same_directory_is_refused_in_one_line(process: Process) -> None:
    second = subprocess.run(
        [sys.executable, "-m", "penstock", "buffer", "--dir", str(process.directory), "--port", "0"], capture_output=True, text=True, timeout=30
    )
    assert second.returncode == 1
    assert len(second.stderr.strip().splitlines()) == 1, second.stderr


def test_a_server_says_where_it_listens(process: Process) -> None:
    assert f"listening on http://127.0.0.1:{process.port}\n" in (process.directory / "log").read_text()


def test_a_port_in_use_is_refused_in_one_line(process: Process, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penstock", "buffer", "--dir", str(tmp_path / "other"), "--port", str(process.port)]
    second = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert second.returncode == 1
    assert f"{process.port}" in second.stderr
    assert len(second.stderr.strip().splitlines()) == 1, second.stderr


def test_another_host_without_a_token_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penstock", "buffer", "--dir", str(tmp_path), "--host", "0.0.0.0"]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=30, env=os.environ)
    assert (refused.returncode, "needs a token" in refused.stderr) == (2, True)


def test_tokens_have_scopes_and_do_not_stand_on_the_command_line(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("produce=writer-5f1e\nconsume=trainer-5f1e\nview=looker-5f1e\nroot-5f1e\n")
    (tmp_path / "buffer").mkdir()
    process = Process(tmp_path / "buffer", "--token-file", str(tokens))
    try:
        asyncio.run(_try_tokens(process.url))
        command = Path(f"/proc/{process.child.pid}/cmdline").read_bytes()
        assert not any(value in command for value in (b"writer-5f1e", b"trainer-5f1e", b"looker-5f1e", b"root-5f1e"))
        assert process.get("/livez") == {"live": True}
    finally:
        process.kill()


async def _try_tokens(url: str) -> None:
    async with (
        BufferClient(url, "run", token="root-5f1e") as root,
        BufferClient(url, "run", token="writer-5f1e") as writer,
        BufferClient(url, "run", token="trainer-5f1e") as trainer,
        BufferClient(url, "run", token="looker-5f1e") as looker,
        BufferClient(url, "run") as nobody,
    ):
        await root.open_run(Laws(), "0" * 32)
        await writer.open_groups([group(0)])
        assert [answer.code for answer in await writer.write([rollout("s/0/0", member) for member in range(2)])] == [None, None]
        lease = (await trainer.take_lease("one", "trainer")).lease
        assert lease is not None
        assert len(await trainer.lease_groups(lease)) == 1
        assert (await looker.where("s/0/0")).group.state == "bound"
        for refused in (writer.status(), trainer.open_groups([group(1)]), looker.settle_lease("one", "trainer"), writer.open_run(Laws(), "0" * 32)):
            with pytest.raises(ForbiddenError, match="does not have the scope"):
                await refused
        with pytest.raises(UnauthorizedError):
            await nobody.status()


async def test_a_large_batch_is_decided_in_parts_and_read_by_a_process_that_dies_with_the_buffer(mortal: Process) -> None:
    async with BufferClient(mortal.url, "run") as client:
        await client.open_run(Laws(credit_groups=10**6), "0" * 32)
        await client.open_groups([group(number) for number in range(600)])
        rollouts = [rollout(f"s/0/{number}", member) for number in range(600) for member in range(2)]
        rollouts[700] = rollout("s/0/350", 7)
        for duplicate in (False, True):
            written = list(await client.write(rollouts))
            refused = written.pop(700)
            assert (refused.code, "no member 7" in str(refused.message)) == ("conflict", True)
            assert {(answer.code, answer.duplicate) for answer in written} == {(None, duplicate)}
            assert len(written) == 1199
        while not (found := re.search(r"large batches are read by process (\d+)", (mortal.directory / "log").read_text())):
            await client.write(rollouts)
    reader = int(found[1])
    # So that it cannot see that nobody is there any more.
    os.kill(reader, signal.SIGSTOP)
    mortal.kill()
    _wait_for_the_end_of(reader)


def _wait_for_the_end_of(process: int) -> None:
    """What is left of one that has ended is collected by whoever is its parent now, some time."""
    deadline = time.monotonic() + 60
    while _is_alive(process):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes() != b""
    except OSError:
        return False
