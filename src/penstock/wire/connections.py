"""Requests over kept connections, as few steps as they can be made of: with a full client, a turn of an agent would cost twice as much.

Plain HTTP/1.1 to servers of our own choosing. Anything else (TLS, redirects, streams) is left to a full client.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import httptools

from penstock.clock import Alarm
from penstock.types.frozen import quickly_made

IDLE_CONNECTIONS = 256
"""Kept open to one server, at most."""


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What a server said."""

    status: int
    raw_headers: Sequence[tuple[bytes, bytes]]
    """As they came: of a good answer nobody asks for them."""
    body: bytes

    @property
    def headers(self) -> dict[str, str]:
        """By name in lower case."""
        return {name.decode("latin1").lower(): value.decode("latin1") for name, value in self.raw_headers}


class _Outbox:
    """Requests that are written together, as soon as whoever is ready to run has run.

    A write wakes the server up if it sleeps, and that costs more than the write. Those who are answered together mostly ask again together: then one of
    them wakes it, and the others find it awake.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._waiting: list[tuple[asyncio.Transport, bytes]] = []

    def put(self, transport: asyncio.Transport, data: bytes) -> None:
        if not self._waiting:
            self.loop.call_soon(self._write)
        self._waiting.append((transport, data))

    def _write(self) -> None:
        waiting, self._waiting = self._waiting, []
        for transport, data in waiting:
            if not transport.is_closing():  # given up meanwhile, or lost
                transport.write(data)


class _Connection(asyncio.Protocol):
    """One connection: one request at a time."""

    def __init__(self, outbox: _Outbox) -> None:
        self.transport: asyncio.Transport | None = None
        self.is_usable = True
        self._outbox = outbox
        self._alarm = Alarm(self._time_out)
        self._waiting: asyncio.Future[Answered] | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._parts: list[bytes] = []
        # One for all answers of a connection: it begins anew behind each of them.
        self._parser = httptools.HttpResponseParser(self)

    def send(self, data: bytes, seconds: float) -> asyncio.Future[Answered]:
        """Write a request; the future gets what is answered, or `TimeoutError` if that is not all there in time."""
        assert self.transport is not None
        self._headers, self._parts = [], []
        self._waiting = self._outbox.loop.create_future()
        self._alarm.set(seconds)
        self._outbox.put(self.transport, data)
        return self._waiting

    def close(self) -> None:
        self.is_usable = False
        self._alarm.close()
        if self.transport is not None:
            self.transport.abort()

    # Called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._waiting is None or self._waiting.done():  # nobody asked
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(ConnectionError(f"what the server says is not HTTP: {error}"))
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_usable = False
        self._fail(ConnectionError(f"the server closed the connection{f': {error}' if error else ''}"))

    # Called by the parser

    def on_message_begin(self) -> None:
        # An answer behind the one that was asked for must not be taken for that to the next request.
        if self._waiting is None or self._waiting.done():
            self.is_usable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)

    def on_message_complete(self) -> None:
        if self._waiting is None or self._waiting.done():
            return
        self.is_usable = self.is_usable and self._parser.should_keep_alive()
        self._alarm.clear()
        self._waiting.set_result(Answered(status=self._parser.get_status_code(), raw_headers=self._headers, body=b"".join(self._parts)))

    def _time_out(self) -> None:
        self._fail(TimeoutError("the server has not answered in time"))
        self.close()

    def _fail(self, error: Exception) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)


class Wire:
    """Connections to one server. `base_url` is http."""

    def __init__(self, base_url: str, *, token: str | None = None) -> None:
        parts = urlsplit(base_url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._root = parts.path.rstrip("/")
        self._head = f"Host: {parts.netloc}\r\n" + (f"Authorization: Bearer {token}\r\n" if token else "")
        self._idle: deque[_Connection] = deque()
        self._outbox: _Outbox | None = None

    async def post(self, path: str, body: bytes, content_type: str = "application/json", *, seconds: float) -> Answered:
        """Send a request and read all of the answer. Raises `OSError` or `TimeoutError` if there is none; whether it was taken is not known then."""
        head = f"POST {self._root}{path} HTTP/1.1\r\n{self._head}Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
        connection = self._kept() or await self._made(seconds)
        try:
            answered = await connection.send(head.encode("latin1") + body, seconds)
        except BaseException:
            connection.close()
            raise
        if connection.is_usable and len(self._idle) < IDLE_CONNECTIONS:
            self._idle.append(connection)
        else:
            connection.close()
        return answered

    def close(self) -> None:
        """Close what is idle."""
        while self._idle:
            self._idle.pop().close()

    def _kept(self) -> _Connection | None:
        # The newest first: those that the server may have closed for idleness stay at the other end.
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable and connection.transport is not None and not connection.transport.is_closing():
                return connection
        return None

    async def _made(self, seconds: float) -> _Connection:
        loop = asyncio.get_running_loop()
        if self._outbox is None or self._outbox.loop is not loop:
            self._outbox = _Outbox(loop)
        outbox = self._outbox
        async with asyncio.timeout(seconds):
            _, made = await loop.create_connection(lambda: _Connection(outbox), self._host, self._port)
        return made
