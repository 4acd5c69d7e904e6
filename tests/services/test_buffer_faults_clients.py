"""A buffer without room, clients that race, slow and oversized ones, and bad input on the compatible routes: a good client goes on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import aiohttp
import pytest
from tests.services.buffers import Process

EARLY_ANSWERS = """
from penstock.buffer import service

async def passed(self, commit):
    pass

service.Line.passed = passed
"""

_names = count()


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    running = Process(tmp_path_factory.mktemp("buffer"), "--group-size", "2")
    yield running
    running.kill()


def item(uid: str, instance: str = "a", reward: object = 1.0, text: str = "4") -> bytes:
    return json.dumps({"uid": uid, "instance_id": instance, "messages": [{"role": "assistant", "content": text}], "reward": reward}).encode()


def takes_a_good_write(process: Process) -> None:
    """Within a second, as promised."""
    name = f"good-{next(_names)}"
    started = time.monotonic()
    assert process.post("/buffer/write", item(name, name))[0] == 200
    assert time.monotonic() - started < 1


def lost_without_room(process: Process) -> set[str]:
    """Items that were acknowledged while the log had no room, or before, and are not given when there is room again."""
    assert process.post("/buffer/write", item("first-0", "first", 0.0))[0] == 200
    log, pid = process.directory / "store.sqlite-wal", process.child.pid
    # What a full disk does to one file: it may not grow further.
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (log.stat().st_size + 40_000, resource.RLIM_INFINITY))
    acknowledged, status = ["first-0"], 200
    for number in range(50):
        status, _ = process.post("/buffer/write", item(f"u{number}-0", f"u{number}", 0.0, "x" * 3000))
        if status != 200:
            break
        acknowledged.append(f"u{number}-0")
    assert status in (200, 503, 507)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    deadline = time.monotonic() + 20
    for uid in acknowledged:
        while process.post("/buffer/write", item(uid.replace("-0", "-1"), uid[:-2], 1.0))[0] != 200:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    found = [read["uid"] for read in json.loads(process.post("/get_rollout_data", b"{}")[1])["data"]["data"]]
    assert len(found) == len(set(found))
    assert process.get("/v1/runs/default/ledger")["imbalance"] == 0
    return set(acknowledged) - set(found)


def test_without_room_nothing_is_acknowledged_and_with_it_everything_goes_on(tmp_path: Path) -> None:
    process = Process(tmp_path, "--group-size", "2")
    try:
        assert lost_without_room(process) == set()
        assert "nothing is acknowledged until it is back" in (tmp_path / "log").read_text()
    finally:
        process.kill()


def test_a_buffer_that_answers_before_it_has_stored_is_found_out_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "patch").mkdir()
    (tmp_path / "patch" / "sitecustomize.py").write_text(EARLY_ANSWERS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "patch"))
    process = Process(tmp_path, "--group-size", "2")
    try:
        assert lost_without_room(process)
    finally:
        process.kill()


async def test_64_clients_race_on_the_same_items_and_each_counts_once(process: Process) -> None:
    bodies = [item(f"race-{place}", "race", float(place)) for place in range(2)] + [item("race-0", "race", 0.5)]

    async def write(session: aiohttp.ClientSession, number: int) -> int:
        async with session.post(f"{process.url}/buffer/write", data=bodies[number % 3]) as answer:
            return answer.status

    async with aiohttp.ClientSession() as session:
        answers = await asyncio.gather(*(write(session, number) for number in range(64)))
    assert set(answers) == {200, 409}
    found = json.loads(process.post("/get_rollout_data", b"{}")[1])["data"]["data"]
    assert sorted(read["uid"] for read in found) == ["race-0", "race-1"]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
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
    ],
    ids=lambda value: ascii(value)[:50],
)
def test_bad_input_is_refused_in_the_compatible_shape_and_stops_nobody(process: Process, body: bytes, expected: int) -> None:
    before = process.get("/buffer/stats")[0]["total_written"]
    status, answer = process.post("/buffer/write", body)
    assert status == expected, answer
    assert (json.loads(answer)["success"], json.loads(answer)["data"]) == (False, None)
    assert process.get("/buffer/stats")[0]["total_written"] == before
    takes_a_good_write(process)


def test_500_slow_and_several_oversized_clients_leave_a_good_writer_alone(process: Process) -> None:
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
            seconds = []
            for number in range(100):
                started = time.monotonic()
                assert process.post("/buffer/write", item(f"patient-{number}", f"patient-{number}"))[0] == 200
                seconds.append(time.monotonic() - started)
            assert set(answers) == {b"HTTP/1.1 413"}
    assert sorted(seconds)[98] < 1.0
