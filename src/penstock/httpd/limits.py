"""How long a client may take and how much it may send before anybody looks at it: an HTTP protocol that ends connections which cost too much.

    waits for the first byte, or for the rest of the headers    header_seconds, max_header_bytes    408, 431
    waits for the rest of the body                              body_seconds                        408
    waits for the client to read what was written               stalled_seconds                     cut off
    waits for the next request                                  keep_alive_seconds                  closed
    one connection too many                                     max_connections                     503, Retry-After

A refusal has the shape of the path that was asked for, as far as that has arrived; one connection too many is refused before it has said anything.
The parser underneath has no limit of its own: it collects a header of any size. A request that arrives in one piece costs no timer.
"""

from __future__ import annotations

import asyncio
import contextlib
import http
import resource
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from penstock.errors import LimitError, MalformedError, PenstockError
from penstock.httpd.direct import DirectReply, Refused, refusal

LINGER_SECONDS = 1.0
"""After a refusal, what the client still sends is read away for so long: a client that is cut off while it sends never sees why."""
MOST_LINGERING = 64
"""Connections over the limit that get a sentence; those beyond are cut off at once."""
SPARE_DESCRIPTORS = 256
"""Descriptors that are left for files, the store and our own connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a connection may cost."""

    max_header_bytes: int = 64 * 1024
    """Request line and headers; more is refused with 431."""
    header_seconds: float = 9.0
    """Headers must have arrived by then; a connection that says nothing is closed after it, too."""
    body_seconds: float = 29.0
    """The body must have arrived so long after the headers."""
    stalled_seconds: float = 60.0
    """A client that reads nothing of its answer for so long is cut off."""
    keep_alive_seconds: int = 75
    """An idle connection is closed after this."""
    max_connections: int = 4096
    """One more is answered with 503."""


class Phase(Enum):
    """What a connection is in the middle of."""

    IDLE = 0
    HEADERS = 1
    BODY = 2


class LimitedProtocol(HttpToolsProtocol):
    """`HttpToolsProtocol` under `limits`. See the module's docstring."""

    limits = Limits()
    shapes: Mapping[str, Refused] = {}
    """How refusals look on paths that have a shape of their own."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there."""
        super().connection_made(transport)
        self._phase = Phase.IDLE
        self._requests = 0
        """Requests that have arrived whole."""
        self._headers_too_large = False
        self._unread_bytes = 0
        """Received for headers that are not read yet."""
        self._refused = False
        self._timed: tuple[int, Phase] | None = None
        """What the timer waits for."""
        self._timer: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._resting_since = 0.0
        excess = len(self.connections) - self.limits.max_connections
        if excess > MOST_LINGERING:
            self._refused = True
            transport.abort()
        elif excess > 0:
            self._refuse(LimitError(f"{self.limits.max_connections} connections are open; try again later", http_status=503))
        else:
            self._timer = self.loop.call_later(self.limits.header_seconds, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        for timer in (self._timer, self._stalled, self.timeout_keep_alive_task):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes of a client."""
        if self._refused:
            return
        requests = self._requests
        super().data_received(data)
        if self._phase is Phase.HEADERS and self._requests == requests:
            # Bytes of headers that the parser holds: it collects one of any size.
            self._unread_bytes += len(data)
            if self._unread_bytes > self.limits.max_header_bytes:
                self._headers_too_large = True
                self.send_400_response("")
        if not self._refused:
            self._watch()

    def send_400_response(self, msg: str) -> None:
        """What the parser stopped at gets our shape of an error."""
        if self._refused:
            return
        if self._headers_too_large:
            self._refuse(LimitError(f"the headers are over the limit of {self.limits.max_header_bytes} bytes", http_status=431))
        else:
            self._refuse(MalformedError("this is not an HTTP request that can be read"))

    def _unsupported_upgrade_warning(self) -> None:
        """Nothing here upgrades; the request is answered as it stands."""

    # Called by the parser

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        self._phase, self._unread_bytes = Phase.HEADERS, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """All headers are there: the app is started, unless they are too large."""
        self._phase, self._unread_bytes = Phase.BODY, 0
        # Counted once, here: to count as each arrives would cost every request a call for every header.
        if len(self.url) + sum([len(name) + len(value) + 4 for name, value in self.headers]) > self.limits.max_header_bytes:
            self._headers_too_large = True
            raise ValueError("the parser stops here, and `send_400_response` says why")
        self.begin_request()

    def begin_request(self) -> None:
        """Start what answers the request whose headers are there."""
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The request has arrived whole."""
        self._phase = Phase.IDLE
        self._requests += 1
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """A request has been answered: the next that waits is begun, or the connection rests."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        else:
            self._rest()

    # Called by the transport

    def pause_writing(self) -> None:
        """The client does not read what was written."""
        super().pause_writing()
        self._stalled = self.loop.call_later(self.limits.stalled_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """It does again."""
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    # Inside

    @property
    def is_answering(self) -> bool:
        """Whether a request is under way."""
        return self.cycle is not None and not self.cycle.response_complete

    def asked_path(self) -> str:
        """The path of the request that is arriving, as far as it is known."""
        if self._phase is Phase.IDLE:
            return ""
        try:
            return unquote(httptools.parse_url(self.url).path.decode("ascii"))
        except (httptools.HttpParserInvalidURLError, UnicodeDecodeError, AttributeError):
            return ""  # it has not come, or is none

    def _rest(self) -> None:
        """The connection waits for its next request. Its timer is set again only when it rings: one for each request would cost more than its parsing."""
        self._resting_since = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_later(self.limits.keep_alive_seconds, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        """Close the connection if it has rested for long enough; if it has not, look again when it would have."""
        self.timeout_keep_alive_task = None
        if self._phase is not Phase.IDLE or self.is_answering or self.transport.is_closing():
            return
        left = self._resting_since + self.limits.keep_alive_seconds - self.loop.time()
        if left > 0:
            self.timeout_keep_alive_task = self.loop.call_later(left, self.timeout_keep_alive_handler)
        else:
            self.transport.close()

    def _unset_keepalive_if_required(self) -> None:
        """Nothing is unset when bytes come: the handler looks at what the connection does when its timer rings."""

    def _watch(self) -> None:
        """Set the timer for what the connection waits for now."""
        if self._phase is Phase.IDLE and self._timer is None:
            return
        waits_for = (self._requests, self._phase)
        if waits_for == self._timed:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timed = waits_for
        if self._phase is not Phase.IDLE:
            seconds = self.limits.header_seconds if self._phase is Phase.HEADERS else self.limits.body_seconds
            self._timer = self.loop.call_later(seconds, self._too_slow)

    def _too_slow(self) -> None:
        if self.flow.read_paused:
            # It is we who do not read: the client has done its part.
            self._timer = self.loop.call_later(self.limits.body_seconds, self._too_slow)
            return
        missing = "body" if self._phase is Phase.BODY else "headers"
        seconds = self.limits.body_seconds if self._phase is Phase.BODY else self.limits.header_seconds
        self._refuse(LimitError(f"the {missing} did not arrive within {seconds:g} s", http_status=408))

    def _refuse(self, error: PenstockError) -> None:
        """Say why, and end the connection."""
        self._refused = True
        if self._timer is not None:
            self._timer.cancel()
        cycle: Any = self.cycle
        answering = self.is_answering
        if answering:
            # Whoever reads the body is told that no more comes, and writes to nobody.
            cycle.disconnected = True
            cycle.message_event.set()
        if answering and cycle.response_started:
            self.transport.abort()
            return
        shape = self.shapes.get(self.asked_path(), refusal)
        self.transport.write(_raw_reply(shape(error, secrets.token_hex(8))))
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            with contextlib.suppress(OSError):  # the client is gone already
                self.transport.write_eof()
        self._timer = self.loop.call_later(LINGER_SECONDS, self.transport.abort)


def allow_descriptors(limits: Limits) -> int:
    """Let this process have as many descriptors as its connections need, as far as the system allows; gives the connections that there is room for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.max_connections + MOST_LINGERING + SPARE_DESCRIPTORS
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    room = limits.max_connections if soft == resource.RLIM_INFINITY else soft - MOST_LINGERING - SPARE_DESCRIPTORS
    return max(1, min(limits.max_connections, room))


def _raw_reply(reply: DirectReply) -> bytes:
    lines = [f"HTTP/1.1 {reply.status} {http.HTTPStatus(reply.status).phrase}".encode()]
    headers = ((b"content-type", reply.content_type), (b"content-length", str(len(reply.body)).encode()), *reply.headers, (b"connection", b"close"))
    return b"\r\n".join([*lines, *(b"%b: %b" % header for header in headers), b"", reply.body])
