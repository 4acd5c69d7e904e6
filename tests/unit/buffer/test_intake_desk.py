"""Large batches are read in a process of their own, and read all the same when there is none."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
import pytest_asyncio
from tests.services.buffers import rollout

from penstock.buffer.intake import Intake, rollout_intake
from penstock.buffer.intake_child import HEAD, LENGTH, packed
from penstock.buffer.intake_desk import LARGE_BYTES, IntakeDesk, _Line
from penstock.buffer.service import BufferService
from penstock.buffer.store.sqlite import SqliteStore
from penstock.errors import InputError, InvalidError, MalformedError
from penstock.types import Rollout
from penstock.wire import ContentType, encode_json, encode_msgpack, join_items

_ENCODE: dict[ContentType, Callable[[Rollout], bytes]] = {"json": encode_json, "msgpack": encode_msgpack}


def bodies_of(form: ContentType) -> list[bytes]:
    """Rollouts that are a large batch together; the third is for another run."""
    bodies: list[bytes] = []
    for number in count():
        made = rollout(f"s/0/{number}", number % 8, run="other" if number == 2 else "run")
        bodies.append(_ENCODE[form](replace(made, rewards={"part": number / 8})))
        if sum(map(len, bodies)) >= LARGE_BYTES:
            return bodies
    raise AssertionError


MSGPACK = bodies_of("msgpack")
LARGE = join_items(MSGPACK)


@pytest_asyncio.fixture
async def desk(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[IntakeDesk]:
    """That starts a process however many cores there are, and the next one at once."""
    monkeypatch.setattr("penstock.buffer.intake_desk._num_cores", lambda: 2)
    made = IntakeDesk(patience_seconds=0.2, again_seconds=0.0)
    yield made
    await made.close()


async def process_of(desk: IntakeDesk, after: int | None = None) -> int:
    """Have a process started, `after` another, and wait for it."""
    while desk.process is None or desk.process == after:
        await desk.read("run", LARGE, "msgpack")
        await asyncio.sleep(0.01)
    return desk.process


def is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def check(found: list[Intake | InputError], bodies: list[bytes], form: ContentType) -> None:
    """Holds what was read against what is read of each alone, here."""
    assert len(found) == len(bodies)
    for number, (intake, body) in enumerate(zip(found, bodies, strict=True)):
        if number == 2:
            assert isinstance(intake, InvalidError)
            assert "'other' was written to run 'run'" in str(intake)
        else:
            assert intake == rollout_intake("run", body, form)


@pytest.mark.parametrize("form", ["json", "msgpack"])
async def test_a_large_batch_is_read_apart_as_it_would_be_here(desk: IntakeDesk, form: ContentType) -> None:
    bodies = bodies_of(form)
    check(await desk.read("run", join_items(bodies, form), form), bodies, form)
    process = await process_of(desk)
    check(await desk.read("run", join_items(bodies, form), form), bodies, form)
    assert desk.process == process


async def test_many_at_once_are_told_their_own(desk: IntakeDesk) -> None:
    await process_of(desk)
    # One rollout is for this run, each time in another place.
    orders = [MSGPACK[start:] + MSGPACK[:start] for start in range(0, 50, 10)]
    found = await asyncio.gather(*(desk.read("other", join_items(order), "msgpack") for order in orders))
    places = [[not isinstance(intake, InputError) for intake in batch].index(True) for batch in found]
    assert places == [order.index(MSGPACK[2]) for order in orders]


async def test_a_small_batch_needs_no_process(desk: IntakeDesk) -> None:
    small = MSGPACK[:4]
    assert len(join_items(small)) < LARGE_BYTES
    check(await desk.read("run", join_items(small), "msgpack"), small, "msgpack")
    await asyncio.sleep(0)
    assert desk._life is None


async def test_what_is_no_batch_is_refused(desk: IntakeDesk) -> None:
    await process_of(desk)
    with pytest.raises(MalformedError, match="not a msgpack array"):
        await desk.read("run", b"\xc1" * LARGE_BYTES, "msgpack")
    check(await desk.read("run", LARGE, "msgpack"), MSGPACK, "msgpack")


async def test_whoever_waits_for_a_process_that_is_killed_is_answered_and_another_takes_its_place(desk: IntakeDesk) -> None:
    process = await process_of(desk)
    os.kill(process, signal.SIGSTOP)
    waiting = [asyncio.create_task(desk.read("run", LARGE, "msgpack")) for _ in range(3)]
    await asyncio.sleep(0)
    os.kill(process, signal.SIGKILL)
    for found in await asyncio.gather(*waiting):
        check(found, MSGPACK, "msgpack")
    assert await process_of(desk, after=process) != process


async def test_a_process_that_hangs_is_ended_and_the_batch_read_here(desk: IntakeDesk) -> None:
    process = await process_of(desk)
    os.kill(process, signal.SIGSTOP)
    check(await desk.read("run", LARGE, "msgpack"), MSGPACK, "msgpack")
    assert await process_of(desk, after=process) != process
    assert not is_running(process)


async def test_a_process_that_nobody_asks_is_left_alone(desk: IntakeDesk) -> None:
    process = await process_of(desk)
    os.kill(process, signal.SIGSTOP)
    # Longer than it may be silent when it was asked.
    await asyncio.sleep(0.5)
    os.kill(process, signal.SIGCONT)
    check(await desk.read("run", LARGE, "msgpack"), MSGPACK, "msgpack")
    assert desk.process == process


async def test_nobody_waits_for_a_process_that_was_gone_before_he_asked(desk: IntakeDesk) -> None:
    process = await process_of(desk)
    line = desk._line
    assert line is not None
    os.kill(process, signal.SIGKILL)
    await line.end(60.0)
    assert await line.ask("run", LARGE, "msgpack") is None


def test_a_process_whose_buffer_has_gone_in_the_middle_of_a_batch_ends_without_a_word() -> None:
    near, far = socket.socketpair()
    words = [sys.executable, "-m", "penstock.buffer.intake_child", str(far.fileno())]
    with near, subprocess.Popen(words, pass_fds=(far.fileno(),), stderr=subprocess.PIPE) as child:
        far.close()
        near.sendall(HEAD.pack(3, 1000, False) + b"run" + LARGE[:500])
        near.shutdown(socket.SHUT_WR)
        assert child.communicate(timeout=60)[1] == b""
        assert child.returncode == 0


async def test_answers_may_come_in_pieces_and_together() -> None:
    class Mute(asyncio.Transport):
        def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
            pass

    def answer(*members: int) -> bytes:
        said = packed([rollout_intake("run", encode_msgpack(rollout("s/0/0", member)), "msgpack")[0] for member in members])
        return LENGTH.pack(len(said)) + said

    line = _Line()
    line.connection_made(Mute())
    line.data_received(answer())
    assert line.ready.is_set()
    asked = [line.ask("run", b"", "msgpack") for _ in range(3)]
    for byte in answer(0, 1):
        line.data_received(bytes((byte,)))
    line.data_received(answer(2) + answer(3))
    assert [[record.member for record in await place or () if record] for place in asked] == [[0, 1], [2], [3]]


async def test_a_client_that_leaves_costs_nobody_else_his_answer(desk: IntakeDesk) -> None:
    process = await process_of(desk)
    leaving, staying = (asyncio.create_task(desk.read("run", LARGE, "msgpack")) for _ in range(2))
    await asyncio.sleep(0)
    leaving.cancel()
    check(await staying, MSGPACK, "msgpack")
    assert desk.process == process


async def test_the_process_ends_with_the_desk(desk: IntakeDesk) -> None:
    process, life = await process_of(desk), desk._life
    await desk.close()
    assert not is_running(process)
    check(await desk.read("run", LARGE, "msgpack"), MSGPACK, "msgpack")
    assert desk._life is life


async def test_the_process_ends_with_the_service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("penstock.buffer.intake_desk._num_cores", lambda: 2)
    service = BufferService(SqliteStore(tmp_path / "store.sqlite"), expire_seconds=60.0, max_waiting=1)
    async with service.running():
        process = await process_of(service.intakes)
    assert not is_running(process)


async def test_on_a_single_core_all_is_read_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0}, raising=False)
    desk = IntakeDesk()
    check(await desk.read("run", LARGE, "msgpack"), MSGPACK, "msgpack")
    assert desk._life is None


async def test_a_process_that_ends_before_it_can_read_is_never_asked(
    desk: IntakeDesk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("penstock.buffer.intake_desk._MODULE", "penstock.buffer.no_such_module")
    await desk.read("run", LARGE, "msgpack")
    assert desk._life is not None
    await desk._life
    assert desk.process is None
    assert [record.getMessage() for record in caplog.records if "intake" in record.name] == [
        "the process that reads large batches is gone; meanwhile they are read here"
    ]


async def test_a_process_that_cannot_be_started_is_not_tried_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[object] = []

    async def refuse(*words: object, **options: object) -> None:
        tries.append(words)
        raise OSError("no more processes")

    monkeypatch.setattr("penstock.buffer.intake_desk._num_cores", lambda: 2)
    monkeypatch.setattr("penstock.buffer.intake_desk.start_with_socket", refuse)
    desk = IntakeDesk()
    for _ in range(3):
        check(await desk.read("run", LARGE, "msgpack"), MSGPACK, "msgpack")
        await asyncio.sleep(0.01)
    assert len(tries) == 1
    await desk.close()
