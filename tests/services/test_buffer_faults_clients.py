"""A buffer without room, on a failing disk, with damaged bytes; clients that race, slow and oversized ones, and bad input on the compatible routes.

Each promise is looked after by a trial, which gives what was broken. A buffer that has the bug in question must make its trial give something.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import socket
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import aiohttp
import pytest
from tests.services.buffers import Process, rollout
from tests.services.sabotage import (
    EARLY_ANSWERS,
    FAILING_DISK,
    FORGOTTEN_LEASES,
    FORGOTTEN_UIDS,
    NAN_IS_A_NUMBER,
    ONE_AT_A_TIME,
    SULKS,
    UNCHECKED_BYTES,
    running,
)

from penstock.buffer import api
from penstock.buffer.client import BufferClient
from penstock.errors import ForbiddenError
from penstock.types import Laws, LeaseRecord, LeaseRequest

NUM_CLIENTS = 64
_names = count()


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    running = Process(tmp_path_factory.mktemp("buffer"), "--group-size", "2")
    yield running
    running.kill()


def item(uid: str, instance: str = "a", reward: object = 1.0, text: str = "4") -> bytes:
    return json.dumps({"uid": uid, "instance_id": instance, "messages": [{"role": "assistant", "content": text}], "reward": reward}).encode()


def given(process: Process) -> Counter[str]:
    """How often each item is given by one read of everything."""
    return Counter(read["uid"] for read in json.loads(process.post("/get_rollout_data", b"{}")[1])["data"]["data"])


# A disk that is full, or fails


def fill(process: Process) -> None:
    """What a full disk does to one file: it may not grow further."""
    log = process.directory / "store.sqlite-wal"
    resource.prlimit(process.child.pid, resource.RLIMIT_FSIZE, (log.stat().st_size + 40_000, resource.RLIM_INFINITY))


def break_disk(process: Process, how: str) -> None:
    """Put something behind the log of a process with `FAILING_DISK`: /dev/full has no room (ENOSPC), /dev/null cannot be synced, and a process's
    own memory answers EIO to a write where it has none."""
    place = Path(os.environ["PENSTOCK_TEST_DISK"])
    place.write_text(how)
    process.child.send_signal(signal.SIGUSR1)
    deadline = time.monotonic() + 10
    while place.exists():
        assert time.monotonic() < deadline, "the log is as it was"
        time.sleep(0.01)


def lost_on_a_bad_disk(process: Process, how: str) -> set[str]:
    """Items that were acknowledged before the disk failed, or while it did, and are not given when it is well again."""
    assert process.post("/buffer/write", item("first-0", "first", 0.0))[0] == 200
    fill(process) if how == "full" else break_disk(process, how)
    acknowledged, status = ["first-0"], 200
    for number in range(50):
        status, _ = process.post("/buffer/write", item(f"u{number}-0", f"u{number}", 0.0, "x" * 3000))
        if status != 200:
            break
        acknowledged.append(f"u{number}-0")
    # Answers that came too early are found out below.
    assert status in (200, 507 if how == "/dev/full" else 503)
    resource.prlimit(process.child.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    deadline = time.monotonic() + 20
    for uid in acknowledged:
        while process.post("/buffer/write", item(uid.replace("-0", "-1"), uid[:-2], 1.0))[0] != 200:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    # What only memory has is no answer.
    process.kill()
    process.start()
    found = given(process)
    assert max(found.values(), default=1) == 1
    lost = set(acknowledged) - set(found)
    assert lost or process.get("/v1/runs/default/ledger")["imbalance"] == 0
    return lost


BAD_DISKS = {"no room": "full", "no space": "/dev/full", "no sync": "/dev/null", "EIO": "/proc/self/mem"}
CAUSES = {"/dev/full": "no space left for"}


@pytest.mark.parametrize("how", BAD_DISKS.values(), ids=BAD_DISKS)
def test_on_a_bad_disk_nothing_is_acknowledged_and_on_a_good_one_everything_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setenv("PENSTOCK_TEST_DISK", str(tmp_path / "disk"))
    with running(tmp_path, monkeypatch, FAILING_DISK) as process:
        assert lost_on_a_bad_disk(process, how) == set()
        told = (tmp_path / "log").read_text()
        assert "nothing is acknowledged until it is back" in told
        assert CAUSES.get(how, "disk I/O error") in told


@pytest.mark.parametrize("how", [BAD_DISKS["no room"], BAD_DISKS["no sync"], BAD_DISKS["EIO"]])
def test_a_buffer_that_answers_before_it_has_stored_is_found_out_on_a_bad_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setenv("PENSTOCK_TEST_DISK", str(tmp_path / "disk"))
    with running(tmp_path, monkeypatch, FAILING_DISK, EARLY_ANSWERS) as process:
        assert lost_on_a_bad_disk(process, how)


# Bytes that are not what was stored


def wrongly_given(process: Process) -> list[str]:
    """What a read gives of bytes that were changed on disk, or does not give of others."""
    for name in ("a", "b", "c"):
        for member in range(2):
            assert process.post("/buffer/write", item(f"{name}-{member}", name, float(member), f"needle-{name}-{member}"))[0] == 200
    process.child.terminate()
    assert process.child.wait(10) == 0
    store = process.directory / "store.sqlite"
    store.write_bytes(store.read_bytes().replace(b"needle-b-0", b"Needle-b-0", 1))
    process.start()
    answer = process.post("/get_rollout_data", b"{}")[1]
    found = Counter(read["uid"] for read in json.loads(answer)["data"]["data"])
    broken = ["changed bytes were served"] if b"Needle" in answer else []
    broken += [f"{uid} is missing" for uid in ("a-0", "a-1", "c-0", "c-1") if uid not in found]
    broken += [] if b"damaged" in answer else ["nobody is told"]
    return broken


def test_bytes_that_were_changed_are_never_served_and_hide_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path, monkeypatch) as process:
        assert wrongly_given(process) == []


def test_a_buffer_that_does_not_look_at_its_bytes_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path, monkeypatch, UNCHECKED_BYTES) as process:
        assert "changed bytes were served" in wrongly_given(process)


# Clients that race


async def racing_writes(process: Process) -> list[str]:
    """64 clients write the same two items, one of them with other content too."""
    name = f"race-{next(_names)}"
    bodies = [item(f"{name}-{place}", name, float(place)) for place in range(2)] + [item(f"{name}-0", name, 0.5)]

    async def write(session: aiohttp.ClientSession, number: int) -> int:
        async with session.post(f"{process.url}/buffer/write", data=bodies[number % 3]) as answer:
            return answer.status

    async with aiohttp.ClientSession() as session:
        answers = Counter(await asyncio.gather(*(write(session, number) for number in range(NUM_CLIENTS))))
    found = given(process)
    broken = [] if set(answers) == {200, 409} else [f"answers were {dict(answers)}"]
    return broken + ([] if found == {f"{name}-0": 1, f"{name}-1": 1} else [f"what was given is {dict(found)}"])


async def racing_leases(process: Process) -> list[str]:
    """64 clients take 16 leases of 12 groups: each is asked for by its owner three times, and by another; then all are settled, four times each."""
    name = f"leases{next(_names)}"
    taken: dict[str, list[LeaseRecord]] = {}
    foreign: list[str] = []

    async def take(client: BufferClient, number: int) -> None:
        lease = f"{name}-{number // 4}"
        consumer = "another" if number % 4 == 3 else f"c{number // 4}"
        try:
            reply = await client.take_lease(lease, consumer, LeaseRequest(groups=1), wait_seconds=0.0)
        except ForbiddenError:
            return
        if reply.lease is not None:
            taken.setdefault(lease, []).append(reply.lease)
            foreign.extend([f"{consumer} got {lease} of {reply.lease.consumer}"] if reply.lease.consumer != consumer else [])

    async with BufferClient(process.url, name) as client:
        await client.open_run(Laws(credit_tokens=10**9), "0" * 32)
        groups = [f"s/0/{number}" for number in range(12)]
        await client.open_groups([api.OpenGroup(id=group, environment="env", problem_id="p", size=2, first_estimate=10) for group in groups])
        await client.write([rollout(group, member, run=name) for group in groups for member in range(2)])
        await asyncio.gather(*(take(client, number) for number in range(NUM_CLIENTS)))
        ids = {lease: {tuple(group.id for group in record.groups) for record in records} for lease, records in taken.items()}
        holders = Counter(group for found in ids.values() for given in found for group in given)
        broken = [*foreign, *(f"{lease} was given {found}" for lease, found in ids.items() if len(found) > 1)]
        broken += [f"{group} is in {times} leases" for group, times in holders.items() if times > 1]
        broken += [] if set(holders) == set(groups) else [f"{len(holders)} of {len(groups)} groups were taken"]
        if not broken:
            owners = [(lease, records[0].consumer) for lease, records in taken.items()] * 4
            await asyncio.gather(*(client.settle_lease(lease, consumer) for lease, consumer in owners))
            states = process.get(f"/v1/runs/{name}/ledger")["balances"][0]["groups"]
            broken = [] if states == {"spent": len(groups)} else [f"after all were settled the groups are {states}"]
    return broken


async def test_64_clients_race_on_the_same_items_and_leases_and_each_counts_once(process: Process) -> None:
    assert await racing_writes(process) == []
    assert await racing_leases(process) == []


async def test_a_buffer_that_loses_a_race_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path, monkeypatch, FORGOTTEN_UIDS, FORGOTTEN_LEASES) as process:
        assert await racing_writes(process)
        assert await racing_leases(process)


# Bad input


BAD_ITEMS = [
    (item("x").replace(b"1.0", b"NaN"), 422),
    (item("x").replace(b"1.0", b"Infinity"), 422),
    (item("x").replace(b"1.0", b"1e999"), 422),
    (item("x", reward="nan"), 422),
    (item("x", reward="1"), 422),
    (b'{"uid": "x", "instance_id": "a", "messages": []}', 422),
    (b'{"instance_id": "a", "messages": [], "reward": 1}', 422),
    (item("x\x00y"), 422),
    (item("x").replace(b'"4"', b'"\\ud800"'), 422),
    (item(""), 422),
    (b"{", 400),
    (b"not json", 400),
    (item("x")[:-5], 400),
    (b'{"uid": "x", "uid": "y", "instance_id": "a", "messages": [], "reward": 1}', 400),
    (b'{"uid": "\xff"}', 400),
    (b"[" * 40 + b"]" * 40, 400),
    (b"[]", 422),
    (b"7", 422),
]


def wrong_about(process: Process, body: bytes, expected: int) -> list[str]:
    """What is wrong with the answer to a bad item, and with that to a good one right after it."""
    before = process.get("/buffer/stats")[0]["total_written"]
    status, answer = process.post("/buffer/write", body)
    told = json.loads(answer)
    broken = [] if (status, told["success"], told["data"]) == (expected, False, None) else [f"answered {status}, not {expected}"]
    broken += [] if process.get("/buffer/stats")[0]["total_written"] == before else ["something was stored"]
    name, started = f"good-{next(_names)}", time.monotonic()
    broken += [] if process.post("/buffer/write", item(name, name))[0] == 200 else ["a good write was refused"]
    return broken + ([] if time.monotonic() - started < 1 else ["a good write took more than a second"])


@pytest.mark.parametrize(("body", "expected"), BAD_ITEMS, ids=lambda value: ascii(value)[:50])
def test_bad_input_is_refused_in_the_compatible_shape_and_stops_nobody(process: Process, body: bytes, expected: int) -> None:
    assert wrong_about(process, body, expected) == []


@pytest.mark.parametrize(
    ("bug", "broken"), [(NAN_IS_A_NUMBER, "something was stored"), (SULKS, "a good write took more than a second")], ids=["takes it", "sulks"]
)
def test_a_buffer_that_bad_input_does_harm_to_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bug: str, broken: str) -> None:
    with running(tmp_path, monkeypatch, bug) as process:
        assert broken in wrong_about(process, item("x", reward="1"), 422)


# Slow and oversized clients


def seconds_among_the_slow(process: Process, tries: int = 100) -> list[float]:
    """How long each write of a good client takes while 500 are slow and six are oversized; no more than two that take too long."""
    head = b"POST /buffer/write HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    with contextlib.ExitStack() as stack:
        for number in range(500):
            slow = stack.enter_context(socket.create_connection(("127.0.0.1", process.port), timeout=10))
            slow.sendall(head % 500 + b"{" if number % 2 else head[:30])

        def oversized(_: int) -> bytes:
            with socket.create_connection(("127.0.0.1", process.port), timeout=20) as large:
                large.sendall(head % (17 << 20) + bytes(17 << 20))
                return large.recv(12)

        with ThreadPoolExecutor(4) as pool:
            answers = pool.map(oversized, range(6))
            seconds: list[float] = []
            while len(seconds) < tries and sum(taken >= 1 for taken in seconds) < 2:
                started = time.monotonic()
                name = f"patient-{next(_names)}"
                assert process.post("/buffer/write", item(name, name))[0] == 200
                seconds.append(time.monotonic() - started)
            assert set(answers) == {b"HTTP/1.1 413"}
    return sorted(seconds)


def test_500_slow_and_several_oversized_clients_leave_a_good_writer_alone(process: Process) -> None:
    assert seconds_among_the_slow(process)[-2] < 1.0


def test_a_buffer_that_waits_for_the_slow_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path, monkeypatch, ONE_AT_A_TIME) as process:
        assert seconds_among_the_slow(process)[-2] >= 1.0
