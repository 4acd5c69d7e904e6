"""Requests over kept connections, against servers that behave and servers that do not."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from penstock.wire.connections import Wire

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Kind: a\r\n\r\nok"
CHUNKED = b"HTTP/1.1 429 Too Many\r\nTransfer-Encoding: chunked\r\nRetry-After: 3\r\n\r\n2\r\nno\r\n1\r\n!\r\n0\r\n\r\n"
CLOSING = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"


class Server:
    """Answers each request with the next of `answers`; None closes the connection instead."""

    def __init__(self, *answers: bytes | None) -> None:
        self.answers = list(answers)
        self.requests: list[bytes] = []
        self.num_connections = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        while True:
            head = await reader.read(65536)
            if not head:
                break
            self.requests.append(head)
            answer = self.answers.pop(0)
            if answer is None:
                break
            writer.write(answer)
            if b"Connection: close" in answer:
                break
        writer.close()


@asynccontextmanager
async def serving(handler: Callable[[asyncio.StreamReader, asyncio.StreamWriter], object]) -> AsyncIterator[Wire]:
    server = await asyncio.start_server(handler, "127.0.0.1", 0)  # type: ignore[arg-type]
    wire = Wire(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/base/", token="t0ken")
    try:
        yield wire
    finally:
        wire.close()
        server.close()


async def test_one_connection_serves_one_request_after_another() -> None:
    server = Server(PLAIN, CHUNKED, PLAIN)
    async with serving(server) as wire:
        first = await wire.post("/a?index=1", b"body", "text/plain", seconds=5)
        second = await wire.post("/b", b"", seconds=5)
        await wire.post("/c", b"", seconds=5)
    assert (first.status, first.body, first.headers["x-kind"]) == (200, b"ok", "a")
    assert (second.status, second.body, second.headers["retry-after"]) == (429, b"no!", "3")
    assert server.num_connections == 1
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    assert body == b"body"
    assert head.startswith(b"POST /base/a?index=1 HTTP/1.1\r\n")
    assert {b"Authorization: Bearer t0ken", b"Content-Length: 4", b"Content-Type: text/plain"} <= set(head.split(b"\r\n"))


async def test_requests_at_once_have_a_connection_each() -> None:
    server = Server(*[PLAIN] * 12)
    async with serving(server) as wire:
        answers = await asyncio.gather(*(wire.post("/", b"", seconds=5) for _ in range(6)))
        await asyncio.gather(*(wire.post("/", b"", seconds=5) for _ in range(6)))
    assert {answer.status for answer in answers} == {200}
    assert server.num_connections == 6


async def test_a_connection_that_the_server_closes_is_not_used_again() -> None:
    server = Server(CLOSING, PLAIN)
    async with serving(server) as wire:
        await wire.post("/", b"", seconds=5)
        assert (await wire.post("/", b"", seconds=5)).status == 200
    assert server.num_connections == 2


@pytest.mark.parametrize(("answer", "error"), [(None, "the server closed the connection"), (b"not HTTP at all\r\n\r\n", "what the server says is not HTTP")])
async def test_no_answer_is_an_error_and_the_next_request_gets_its_own(answer: bytes | None, error: str) -> None:
    server = Server(answer, PLAIN)
    async with serving(server) as wire:
        with pytest.raises(ConnectionError, match=error):
            await wire.post("/", b"", seconds=5)
        assert (await wire.post("/", b"", seconds=5)).body == b"ok"


async def test_a_server_that_says_nothing_is_given_up_in_time() -> None:
    async with serving(Server(b"")) as wire:
        with pytest.raises(TimeoutError):
            await wire.post("/", b"", seconds=0.05)


@pytest.mark.parametrize("surplus", [PLAIN, PLAIN[:20]])
async def test_an_answer_that_nobody_asked_for_is_not_taken_for_that_of_the_next_request(surplus: bytes) -> None:
    wanted = PLAIN.replace(b"ok", b"2.")
    server = Server(PLAIN + surplus, wanted)
    async with serving(server) as wire:
        assert (await wire.post("/", b"", seconds=5)).body == b"ok"
        assert (await wire.post("/", b"", seconds=5)).body == b"2."
    assert server.num_connections == 2


async def test_a_deadline_is_that_of_the_request_and_not_of_an_earlier_one() -> None:
    server = Server(PLAIN, b"", PLAIN)
    async with serving(server) as wire:
        await wire.post("/", b"", seconds=60)
        with pytest.raises(TimeoutError, match="in time"):
            await wire.post("/", b"", seconds=0.05)
        assert (await wire.post("/", b"", seconds=5)).body == b"ok"
    assert server.num_connections == 2


async def test_a_request_that_is_given_up_leaves_no_answer_behind() -> None:
    server = Server(b"", PLAIN)
    async with serving(server) as wire:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await wire.post("/", b"", seconds=60)
        assert (await wire.post("/", b"", seconds=5)).body == b"ok"
    assert server.num_connections == 2


def test_a_wire_that_was_closed_serves_another_event_loop() -> None:
    async def ask(wire: Wire, listening: socket.socket) -> bytes:
        server = await asyncio.start_server(Server(PLAIN), sock=listening)
        answered = await wire.post("/", b"", seconds=5)
        wire.close()
        server.close()
        return answered.body

    with socket.create_server(("127.0.0.1", 0)) as listening:
        wire = Wire(f"http://127.0.0.1:{listening.getsockname()[1]}")
        assert [asyncio.run(ask(wire, listening.dup())) for _ in range(2)] == [b"ok", b"ok"]


async def test_a_request_is_written_when_all_who_are_ready_have_run() -> None:
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        wire = Wire(f"http://127.0.0.1:{listening.getsockname()[1]}")
        asking = asyncio.create_task(wire.post("/", b"first", seconds=5))
        peer, _ = await loop.sock_accept(listening)
        with peer:
            assert (await loop.sock_recv(peer, 65536)).endswith(b"first")
            await loop.sock_sendall(peer, PLAIN)
            await asking
            asking = asyncio.create_task(wire.post("/", b"second", seconds=5))
            await asyncio.sleep(0)  # it has asked, over the connection that there is
            with pytest.raises(BlockingIOError):
                peer.recv(65536)
            assert (await loop.sock_recv(peer, 65536)).endswith(b"second")
            await loop.sock_sendall(peer, PLAIN)
            assert (await asking).body == b"ok"
        wire.close()
