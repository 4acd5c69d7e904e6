"""What a client sees does not depend on the lane that answers: the same bytes, however they are cut into pieces, get the same replies in the same order."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from uvicorn.server import ServerState

from penstock.errors import ConflictError, LimitError
from penstock.httpd import Access, DirectReply, DirectRequest, DirectRoute, Scope, Token, routed, router
from penstock.httpd.protocol import LaneProtocol
from penstock.httpd.serving import server_config

MOST_BYTES = 64


def told(request: DirectRequest) -> DirectReply:
    """Everything that a function is told about its request."""
    head = request.head
    kind = (head.header(b"content-type") or b"none").decode()
    return DirectReply(msgspec.json.encode([head.method, head.path, head.query.decode(), dict(head.params), kind, sorted(head.scopes), request.body.decode()]))


def told_later(request: DirectRequest) -> asyncio.Future[DirectReply]:
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[DirectReply] = loop.create_future()
    loop.call_soon(lambda: loop.call_soon(answer.set_result, told(request)))
    return answer


async def told_by_a_task(request: DirectRequest) -> DirectReply:
    await asyncio.sleep(0)
    return DirectReply(request.body, 201, b"text/plain", ((b"x-more", b"1"),))


async def refused_later(request: DirectRequest) -> DirectReply:
    await asyncio.sleep(0)
    raise LimitError("full", retry_after_seconds=2.5)


def refused(request: DirectRequest) -> DirectReply:
    raise ConflictError("slot 3 is taken")


def broken(request: DirectRequest) -> DirectReply:
    raise RuntimeError("secret")


DIRECT = [
    DirectRoute(method="POST", path="/echo", answer=told, needs=Scope.PRODUCE),
    DirectRoute(method="GET", path="/echo", answer=told, needs=Scope.VIEW),
    DirectRoute(method="POST", path="/runs/{run}/echo", answer=told_later, needs=Scope.PRODUCE),
    DirectRoute(method="POST", path="/task/{number:int}", answer=told_by_a_task, needs=Scope.PRODUCE),
    DirectRoute(method="POST", path="/refused", answer=refused, needs=Scope.PRODUCE),
    DirectRoute(method="POST", path="/busy", answer=refused_later, needs=Scope.PRODUCE),
    DirectRoute(method="POST", path="/broken", answer=broken, needs=Scope.PRODUCE),
]
APP = router([routed(route) for route in DIRECT])
ACCESS = Access(token="right", tokens=(Token(value="look", scopes=frozenset({Scope.VIEW})),), max_body_bytes=MOST_BYTES)


@dataclass
class Wire:
    """Stands for a socket; what is written to it is kept."""

    written: list[bytes] = field(default_factory=list)
    closed: bool = False
    paused: bool = False

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.written.append(data)

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def can_write_eof(self) -> bool:
        return False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


@dataclass(frozen=True)
class Sent:
    """Requests that a client sends without waiting for answers; where they are cut into pieces, and how far the loop turns after each."""

    requests: tuple[bytes, ...]
    cuts: tuple[tuple[int, int, int], ...]
    """Number of a request, bytes before its end, turns."""
    each: bool
    """Whether a piece also ends where a request does."""


Reply = tuple[bytes, dict[bytes, bytes], bytes]


async def replies(sent: list[Sent], direct: list[DirectRoute]) -> tuple[list[Reply], bool]:
    config = server_config(APP, ACCESS, direct)
    config.load()
    state = ServerState()
    protocol: Any = config.http_protocol_class(config, state, {}, asyncio.get_running_loop())  # type: ignore[call-arg, operator]
    assert isinstance(protocol, LaneProtocol) == bool(direct)
    wire = Wire()
    protocol.connection_made(wire)
    for part in sent:
        await turns(60)
        data = b"".join(part.requests)
        ends = list(itertools.accumulate(map(len, part.requests)))
        cuts = [max(0, ends[number % len(ends)] - before) for number, before, _ in part.cuts]
        places = sorted({0, ends[-1], *cuts, *(ends if part.each else ())})
        pauses = itertools.chain((pause for _, _, pause in part.cuts), itertools.repeat(0))
        for (start, end), pause in zip(itertools.pairwise(places), pauses, strict=False):
            for _ in range(60):
                if not wire.paused:
                    break
                await turns(1)
            if not wire.closed:
                protocol.data_received(data[start:end])
            await turns(pause)
    await turns(60)
    assert not state.tasks
    # The end of a connection that lingers is a matter of time, and the same code.
    is_over = wire.closed or protocol._refused
    protocol.connection_lost(None)
    return read_replies(b"".join(wire.written)), is_over


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def read_replies(data: bytes) -> list[Reply]:
    found = []
    while data:
        head, _, data = data.partition(b"\r\n\r\n")
        first, *lines = head.split(b"\r\n")
        headers = dict(line.split(b": ", 1) for line in lines)
        length = int(headers.get(b"content-length", b"0"))
        found.append((first, headers, re.sub(rb'"request_id":"\w+"', b"", data[:length])))
        data = data[length:]
    return found


def request_bytes(method: bytes, path: bytes, body: bytes, *headers: bytes, length: bytes | None = b"Content-Length: %d") -> bytes:
    lines = [b"%b %b HTTP/1.1" % (method, path), *headers, *([length % len(body)] if length else [])]
    return b"\r\n".join([*lines, b"", b""]) + body


HOST, TOKEN, LOOK = b"Host: 127.0.0.1:1", b"Authorization: Bearer right", b"Authorization: Bearer look"
bodies = st.sampled_from([0, 1, 5, 20, 50, MOST_BYTES, MOST_BYTES + 1, MOST_BYTES + 30]).map(lambda length: bytes(48 + place % 70 for place in range(length)))
PATHS = [b"/echo", b"/echo", b"/echo?a=1", b"/runs/a%20b/echo", b"/runs/r/echo", b"/task/7", b"/refused", b"/busy", b"/broken", b"http://h/echo", b"/nowhere"]
HEADERS = [b"Content-Type: text/a", b"Content-Type: text/a", b"content-type:text/b  ", b"X-Empty:", b"Content-Encoding: gzip", b"Origin: http://evil"]


@st.composite
def plain(draw: st.DrawFn) -> list[bytes]:
    """Requests of one client, which have all but the length of their bodies in common, and perhaps the path."""
    paths, kind = draw(st.lists(st.sampled_from(PATHS), min_size=1, max_size=2)), draw(st.sampled_from(HEADERS))
    token = draw(st.sampled_from([TOKEN, TOKEN, TOKEN, LOOK, b"Authorization: Bearer wrong", b"X: y"]))
    length = draw(st.sampled_from([b"Content-Length: %d", b"Content-Length: %d", b"content-length: %d", b"Content-Length: 0%d"]))
    said = draw(st.lists(bodies, min_size=1, max_size=4))
    return [request_bytes(b"POST", path, body, HOST, token, kind, length=length) for path, body in zip(itertools.cycle(paths), said, strict=False)]


other = st.sampled_from(
    [
        request_bytes(b"GET", b"/echo", b"", HOST, LOOK, length=None),
        request_bytes(b"PUT", b"/echo", b"abc", HOST, TOKEN),
        request_bytes(b"POST", b"/echo", b"abc", b"Host: evil.example", TOKEN),
        request_bytes(b"POST", b"/echo", b"abc", b"Content-Length: 3", HOST, TOKEN, length=None),
        request_bytes(b"POST", b"/echo", b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", HOST, TOKEN, b"Transfer-Encoding: chunked", length=None),
        request_bytes(b"POST", b"/echo", b"abc", HOST, TOKEN, b"Expect: 100-continue"),
        request_bytes(b"POST", b"/echo", b"abc", HOST, TOKEN, b"Upgrade: h2c"),
        b"\r\n\r\n" + request_bytes(b"POST", b"/echo", b"abc", HOST, TOKEN),
    ]
).map(lambda request: [request])
last = st.sampled_from(
    [
        request_bytes(b"POST", b"/echo", b"abc", HOST, TOKEN, b"Connection: close"),
        request_bytes(b"POST", b"/echo", b"abc", HOST, TOKEN).replace(b"HTTP/1.1", b"HTTP/1.0"),
        request_bytes(b"POST", b"/echo", b"abc", HOST, TOKEN, b"Content-Length: 4"),
        request_bytes(b"POST", b"/echo", b"abc", HOST, TOKEN, length=b"Content-Length: -%d"),
        request_bytes(b"POST", b"/echo", b"abc", HOST, TOKEN, length=b"Content-Length: 99999999999999999999%d"),
        request_bytes(b"POST", b"/echo", b"abc", HOST, b"A\nB: c", TOKEN),
        request_bytes(b"POST", b"/ec\xffho", b"abc", HOST, TOKEN),
        request_bytes(b"POST", b"/echo", b"0\r\n\r\n", HOST, TOKEN, b"Transfer-Encoding: chunked"),
        request_bytes(b"HEAD", b"/echo", b"", HOST, TOKEN, length=None),
        b"nonsense\r\n\r\n",
    ]
)
cuts = st.lists(st.tuples(st.integers(0, 12), st.one_of(st.integers(1, 40), st.integers(1, 200)), st.integers(0, 6)), max_size=4).map(tuple)
many = st.lists(st.one_of(plain(), plain(), other), min_size=1, max_size=4).map(lambda lists: tuple(itertools.chain.from_iterable(lists)))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.builds(Sent, many, cuts, st.booleans()), min_size=1, max_size=3),
    st.lists(st.builds(Sent, last.map(lambda request: (request,)), cuts, st.just(True)), max_size=1),
)
def test_both_lanes_answer_the_same_bytes_alike(sent: list[Sent], end: list[Sent]) -> None:
    # The first part once more at the end: its heads have been seen by then.
    requests = [*sent, sent[0], *end]
    logging.disable()  # hundreds of tracebacks are meant
    try:
        assert asyncio.run(replies(requests, DIRECT)) == asyncio.run(replies(requests, []))
    finally:
        logging.disable(logging.NOTSET)


@pytest.mark.parametrize("token", [TOKEN, LOOK])
def test_headers_that_are_known_may_stand_behind_any_request_line(token: bytes) -> None:
    lines = [b"POST /echo HTTP/1.1", b"POST /runs/r/echo HTTP/1.1", b"POST /runs/s/echo HTTP/1.1", b"POST /runs//echo HTTP/1.1", b"POST /nowhere HTTP/1.1"]
    lines += [b"POST /task/x HTTP/1.1", b"POST /task/8 HTTP/1.1", b"POST /echo?a=1 HTTP/1.1", b"POST /ec%68o HTTP/1.1", b"POST //echo HTTP/1.1"]
    lines += [b"PUT /echo HTTP/1.1", b"GET /echo HTTP/1.1", b"POST /runs/../echo HTTP/1.1", b"POST  /echo HTTP/1.1", b"POST /echo HTTP/1.0"]
    rest = request_bytes(b"POST", b"/echo", b"abc", HOST, token, b"Content-Type: text/a").partition(b" HTTP/1.1")[2]
    logging.disable()
    try:
        for line in lines:
            requests = [Sent((one + rest,), (), True) for one in (lines[0], lines[1], line, lines[0])]
            assert asyncio.run(replies(requests, DIRECT)) == asyncio.run(replies(requests, []))
    finally:
        logging.disable(logging.NOTSET)
