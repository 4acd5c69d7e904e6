"""How connections of a `Wire` end, seen from the other end of each: a plain socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from penstock.wire.connections import Answered, Wire

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Peer:
    """A server whose every step is taken by the test."""

    def __init__(self, listening: socket.socket) -> None:
        self.listening = listening
        self.wire = Wire(f"http://127.0.0.1:{listening.getsockname()[1]}")
        self._tasks: set[asyncio.Task[Answered]] = set()

    def ask(self, body: bytes = b"", seconds: float = 5.0) -> asyncio.Task[Answered]:
        asking = asyncio.create_task(self.wire.post("/", body, seconds=seconds))
        self._tasks.add(asking)
        return asking

    async def accept(self) -> socket.socket:
        async with asyncio.timeout(10):
            connection, _ = await asyncio.get_running_loop().sock_accept(self.listening)
        return connection

    async def read(self, connection: socket.socket) -> bytes:
        """What comes next; nothing at the end of the connection."""
        async with asyncio.timeout(10):
            try:
                return await asyncio.get_running_loop().sock_recv(connection, 65536)
            except ConnectionResetError:
                return b""

    async def answered(self) -> socket.socket:
        """A connection over which a request was answered, and which is kept."""
        asking = self.ask()
        connection = await self.accept()
        assert await self.read(connection)
        connection.sendall(ANSWER)
        assert (await asking).body == b"ok"
        return connection

    async def answer_in_turn(self, asking: list[asyncio.Task[Answered]], connections: Sequence[socket.socket]) -> None:
        """Answer what was asked at once, each over a connection of its own, and see one answer taken before the next is given."""
        for connection in connections:
            assert await self.read(connection)
            connection.sendall(ANSWER)
            _, waiting = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
            asking = list(waiting)


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    async with listening() as peer:
        yield peer


@asynccontextmanager
async def listening(backlog: int = 16) -> AsyncIterator[Peer]:
    with socket.create_server(("127.0.0.1", 0), backlog=backlog) as listening:
        listening.setblocking(False)
        peer = Peer(listening)
        yield peer
        peer.wire.close()


@pytest.mark.parametrize("num_turns", [1, 2, 3])
async def test_a_connection_that_the_server_has_just_closed_is_not_used_again(peer: Peer, num_turns: int) -> None:
    (await peer.answered()).close()
    # In the turn after these its end has been seen; only in the one after that is the connection told that it is lost.
    for _ in range(num_turns):
        await asyncio.sleep(0)
    (await peer.answered()).close()


async def test_a_connection_over_which_the_server_speaks_unasked_is_closed(peer: Peer) -> None:
    with await peer.answered() as connection:
        connection.sendall(ANSWER[:9])
        assert await peer.read(connection) == b""
        (await peer.answered()).close()


async def test_a_request_that_is_given_up_closes_its_connection(peer: Peer) -> None:
    asking = peer.ask(seconds=600.0)
    with await peer.accept() as connection:
        assert await peer.read(connection)
        asking.cancel()
        assert await peer.read(connection) == b""


async def test_a_deadline_that_was_met_does_not_end_the_connection(peer: Peer) -> None:
    asking = peer.ask(seconds=0.05)
    with await peer.accept() as connection:
        assert await peer.read(connection)
        connection.sendall(ANSWER)
        await asking
        async with listening() as silent:
            with pytest.raises(TimeoutError):
                await silent.wire.post("/", b"", seconds=0.1)
        peer.ask(b"again")
        assert (await peer.read(connection)).endswith(b"again")


async def test_the_connection_that_was_used_last_is_used_first(peer: Peer) -> None:
    asking = [peer.ask(), peer.ask()]
    with await peer.accept() as first, await peer.accept() as second:
        await peer.answer_in_turn(asking, (second, first))
        for body in (b"one", b"two"):
            again = peer.ask(body)
            assert (await peer.read(first)).endswith(body)
            first.sendall(ANSWER)
            await again


async def test_no_more_connections_are_kept_than_may_be_idle(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.wire.connections.IDLE_CONNECTIONS", 1)
    asking = [peer.ask(), peer.ask()]
    with await peer.accept() as first, await peer.accept() as second:
        await peer.answer_in_turn(asking, (first, second))
        assert await peer.read(second) == b""


async def test_a_server_that_takes_no_connection_is_given_up_in_time() -> None:
    async with listening(backlog=0) as peer:
        waiting = [socket.socket() for _ in range(2)]
        for client in waiting:
            client.setblocking(False)
            client.connect_ex(peer.listening.getsockname())
        asking = peer.ask(seconds=0.1)
        done, _ = await asyncio.wait({asking}, timeout=10)
        for client in waiting:
            client.close()
        assert done == {asking}
        with pytest.raises(TimeoutError):
            await asking


async def test_closing_a_wire_closes_what_is_idle(peer: Peer) -> None:
    with await peer.answered() as connection:
        peer.wire.close()
        assert await peer.read(connection) == b""
