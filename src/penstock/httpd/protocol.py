"""One connection of a server: requests for direct routes are answered here, all others go on to ASGI. See `httpd.lane`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from functools import partial
from types import CoroutineType
from typing import Any

from penstock.httpd.direct import DirectReply, DirectRequest, DirectRoute, Head, Refused
from penstock.httpd.lane import MOST_DIGITS, KnownHead, Lane, known_head
from penstock.httpd.limits import LimitedProtocol, Limits, Phase


class _NobodyWaits:
    """Stands where others keep an event."""

    def set(self) -> None:
        """There is nobody to wake."""


class _Exchange:
    """A request of the lane from its head to its answer. Has what the protocol underneath asks of a cycle."""

    __slots__ = ("body", "disconnected", "head", "keep_alive", "more_body", "num_missing", "request", "response_complete", "route", "task")

    message_event = _NobodyWaits()
    response_started = False
    """Head and body of an answer leave together."""

    def __init__(self, head: Head, route: DirectRoute, num_missing: int = 0) -> None:
        self.head = head
        self.route = route
        self.num_missing = num_missing
        """Bytes of the body that are still to come; only counted where the parser does not."""
        self.body: list[bytes] = []
        self.request: DirectRequest | None = None
        """Once it has arrived whole."""
        self.task: asyncio.Task[None] | None = None
        """That answers it, if it needs one."""
        self.keep_alive = True
        self.more_body = True
        self.disconnected = False
        self.response_complete = False


class LaneProtocol(LimitedProtocol):
    """`LimitedProtocol` with a lane."""

    lane: Lane

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there."""
        self._data = b""
        """What has just come."""
        self._known: KnownHead | None = None
        """The last head of a request for the lane."""
        self._exchange: _Exchange | None = None
        """The lane's request that is under way."""
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone, and whoever works for it is told."""
        super().connection_lost(exc)
        exchange = self._exchange
        if exchange is not None and exchange.request is not None:
            exchange.request.gone()

    def data_received(self, data: bytes) -> None:
        """Bytes of a client."""
        exchange = self._exchange
        if exchange is None:
            if self._phase is Phase.IDLE and self._is_free():
                known = self._known
                if known is None or not data.startswith(known.before):
                    known = self.lane.recognized(data)
                if known is not None and self._take(known, data):
                    self._known = known
                    return
        elif exchange.num_missing:
            self._collect(exchange, data)
            return
        self._data = data
        super().data_received(data)
        self._data = b""

    def asked_path(self) -> str:
        """The path of the request that is arriving; the parser has not seen that of a known head."""
        return super().asked_path() if self._exchange is None else self._exchange.head.path

    def _is_free(self) -> bool:
        """Whether an answer could be written at once."""
        cycle = self.cycle
        return (cycle is None or cycle.response_complete) and not (self.flow.write_paused or self._refused)

    # By what is known already

    def _take(self, known: KnownHead, data: bytes) -> bool:
        """Answer a request whose head begins as a known one, or begin to collect its body. Not if the head goes on otherwise, or more than one has come."""
        start, length = known.num_before, known.length
        if length is None:
            end = data.find(b"\r\n", start, start + MOST_DIGITS + 2)
            digits = data[start:end]
            if not digits.isdigit() or not data.startswith(known.after, end):
                return False
            start, length = end + len(known.after), int(digits)
        num_missing = start + length - len(data)
        if num_missing < 0 or length > known.most_bytes:
            return False
        if num_missing == 0:
            body = data[start:]
            if known.route.takes is not None and not known.route.takes(body):
                return False
            self._requests += 1
            if self._timer is not None:
                self._watch()
            self._answer(known.head, known.route, body)
            return True
        if known.route.takes is not None:
            return False  # whoever takes it may turn out to be another, who needs what the parser makes of it
        exchange = self._exchange = self.cycle = _Exchange(known.head, known.route, num_missing)  # type: ignore[assignment]
        exchange.body.append(data[start:])
        self._phase = Phase.BODY
        self._watch()
        return True

    def _collect(self, exchange: _Exchange, data: bytes) -> None:
        """More of a body whose length is known."""
        if self._refused:
            return
        exchange.body.append(data[: exchange.num_missing])
        rest = data[exchange.num_missing :]
        exchange.num_missing -= len(data) - len(rest)
        if exchange.num_missing:
            return
        self._phase = Phase.IDLE
        self._requests += 1
        self._watch()
        self._answer(exchange.head, exchange.route, b"".join(exchange.body), exchange)
        if rest and not self.transport.is_closing():
            self.data_received(rest)

    # By the parser

    def begin_request(self) -> None:
        """The headers are there: the lane takes the request, or ASGI does."""
        found = self._routed() if self._is_free() else None
        if found is None:
            super().begin_request()
            return
        head, route = found
        request_line = b"%b %b HTTP/1.1" % (self.parser.get_method(), self.url)
        self._known = known_head(self._data, request_line, head, route, most_bytes=self.lane.door.max_body_bytes)
        if self._known is not None:
            self.lane.learn(self._known)
        self._exchange = self.cycle = _Exchange(head, route)  # type: ignore[assignment]

    def _routed(self) -> tuple[Head, DirectRoute] | None:
        parser = self.parser
        if self.expect_100_continue or parser.get_http_version() != "1.1" or not parser.should_keep_alive() or parser.should_upgrade():
            return None
        if any(name == b"transfer-encoding" for name, _ in self.headers):
            return None
        return self.lane.routed(parser.get_method(), self.url, self.headers)

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        exchange: Any = self.cycle
        if exchange is self._exchange and exchange is not None:
            exchange.body.append(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The request has arrived whole."""
        exchange = self._exchange
        cycle: Any = self.cycle
        if exchange is None or cycle is not exchange:
            super().on_message_complete()
            return
        body = b"".join(exchange.body)
        if exchange.route.takes is None or exchange.route.takes(body):
            super().on_message_complete()
            self._answer(exchange.head, exchange.route, body, exchange)
        else:
            self._pass_on(exchange, body)

    def _pass_on(self, exchange: _Exchange, body: bytes) -> None:
        """Let ASGI answer a request that the lane has collected and cannot answer."""
        self._exchange = None
        exchange.response_complete = True
        super().begin_request()
        super().on_body(body)
        super().on_message_complete()

    # The answer

    def _answer(self, head: Head, route: DirectRoute, body: bytes, exchange: _Exchange | None = None) -> None:
        request = DirectRequest(head, body, self.lane.door.request_id)
        answer = route.begin(request)
        if isinstance(answer, DirectReply):
            self._reply(answer, exchange)
            return
        if exchange is None:
            exchange = self._exchange = self.cycle = _Exchange(head, route)  # type: ignore[assignment]
        exchange.request = request
        if not isinstance(answer, CoroutineType) and asyncio.isfuture(answer):
            if answer.done():
                self._answered(exchange, answer)
            else:
                answer.add_done_callback(partial(self._answered, exchange))
            return
        exchange.task = self.loop.create_task(self._answer_when_done(exchange, answer))
        # The server waits for its tasks when it is told to stop.
        self.tasks.add(exchange.task)

    async def _answer_when_done(self, exchange: _Exchange, answer: Awaitable[DirectReply]) -> None:
        """As `_answered`, of what needs a task of its own: that writes the answer as well, rather than to have another look at it."""
        assert exchange.request is not None and exchange.task is not None
        try:
            reply = await answer
        except asyncio.CancelledError:
            self.transport.abort()
            raise
        except Exception as error:
            reply = exchange.route.failed(error, exchange.request)
        finally:
            self.tasks.discard(exchange.task)
        self._reply(reply, exchange)

    def _answered(self, exchange: _Exchange, future: asyncio.Future[DirectReply]) -> None:
        """What the request waited for has come."""
        assert exchange.request is not None
        if future.cancelled():
            # Only a server that has waited long enough for its requests gives them up.
            self.transport.abort()
            return
        error = future.exception()
        reply = future.result() if error is None else exchange.route.failed(error, exchange.request)
        self._reply(reply, exchange)

    def _reply(self, reply: DirectReply, exchange: _Exchange | None) -> None:
        """Write the answer, and let the connection go on."""
        close = False
        if exchange is not None:
            self._exchange = None
            exchange.response_complete = True
            close = not exchange.keep_alive
            if self._refused or self.transport.is_closing():
                return
        self.transport.write(self.lane.rendered(reply, self.server_state.default_headers, close=close))
        if close:
            self.transport.close()
        if close or self.pipeline or self.flow.read_paused or self.timeout_keep_alive_task is None:
            self.on_response_complete()
        else:
            # What that does where nothing waits.
            self.server_state.total_requests += 1
            self._resting_since = self.loop.time()


def protocol_under(limits: Limits, lane: Lane | None = None, shapes: Mapping[str, Refused] | None = None) -> type[LimitedProtocol]:
    """The protocol for a server with these limits, a lane if it has one, and refusals in the shape of their path."""
    facts = {"limits": limits, "shapes": shapes or {}}
    if lane is None:
        return type("LimitedProtocol", (LimitedProtocol,), facts)
    return type("LaneProtocol", (LaneProtocol,), facts | {"lane": lane})
