"""Clients that are slow, large, or too many, over real sockets, by each lane of a server."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, get_args

import pytest
import uvicorn
import uvloop
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from penstock.errors import PenstockError
from penstock.httpd import Access, DirectReply, DirectRequest, DirectRoute, Limits, Scope, bind, routed, router, scoped
from penstock.httpd.serving import server_config


def counted(request: DirectRequest) -> DirectReply:
    return DirectReply(str(len(request.body)).encode())


def counted_later(request: DirectRequest) -> asyncio.Future[DirectReply]:
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[DirectReply] = loop.create_future()
    loop.call_soon(answer.set_result, counted(request))
    return answer


async def flood(request: Request) -> Response:
    async def pieces():  # type: ignore[no-untyped-def]
        for _ in range(1000):
            yield b"x" * 65536

    return StreamingResponse(pieces())


def flood_at_once(request: DirectRequest) -> DirectReply:
    return DirectReply(b"x" * (1000 * 65536))


def own_shape(error: PenstockError, request_id: str) -> DirectReply:
    return DirectReply(b"our own: %b" % str(error).encode(), error.http_status, b"text/plain")


Lane = Literal["asgi", "direct", "later"]
LANES: tuple[Lane, ...] = get_args(Lane)
"""The ASGI lane, the direct one, and the direct one when the answer is a future."""


@contextlib.contextmanager
def serving(limits: Limits, *, lane: Lane, max_body_bytes: int = 1 << 20) -> Iterator[int]:
    """A server on a thread of its own; gives its port."""
    with served(limits, lane=lane, max_body_bytes=max_body_bytes) as (port, _):
        yield port


@contextlib.contextmanager
def served(limits: Limits, *, lane: Lane, max_body_bytes: int = 1 << 20) -> Iterator[tuple[int, uvicorn.Server]]:
    """Likewise, with the server to look at."""
    echo = counted_later if lane == "later" else counted
    direct = [DirectRoute(method=method, path="/echo", answer=echo, needs=Scope.VIEW) for method in ("GET", "POST")]
    own = DirectRoute(method="GET", path="/flood", answer=flood_at_once, needs=Scope.VIEW)
    app = router([*map(routed, direct), scoped("/own", routed(direct[1]).endpoint, None, methods=["POST"]), scoped("/flood", flood, Scope.VIEW)])
    access = Access(max_body_bytes=max_body_bytes, limits=limits)
    # One path with a shape of its own beside one without; their requests are alike up to there.
    direct += [DirectRoute(method="POST", path="/own", answer=echo, needs=Scope.VIEW, refused=own_shape)]
    server = uvicorn.Server(server_config(app, access, [*direct, own] if lane != "asgi" else (), {"/own": own_shape}))
    listener = bind("127.0.0.1", 0)
    # The loop that the servers run on.
    thread = threading.Thread(target=lambda: uvloop.run(server.serve([listener])))
    thread.start()
    try:
        yield listener.getsockname()[1], server
    finally:
        server.should_exit = True
        server.force_exit = True
        thread.join(10)


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=10)


def answer_of(connection: socket.socket) -> bytes:
    """Everything until the server closes."""
    pieces = []
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(65536):
            pieces.append(piece)
    return b"".join(pieces)


def take_one(connection: socket.socket) -> None:
    """Send a good request over an open connection, and read its whole answer."""
    connection.sendall(GOOD)
    answer = b""
    while not answer.endswith(b"\r\n\r\n5"):
        piece = connection.recv(4096)
        assert piece, answer
        answer += piece


GOOD = b"POST /echo HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\n\r\nhello"


def good_request_seconds(port: int) -> float:
    started = time.monotonic()
    with connected(port) as connection:
        connection.sendall(GOOD.replace(b"\r\nHost", b"\r\nConnection: close\r\nHost", 1))
        assert answer_of(connection).endswith(b"\r\n\r\n5")
    return time.monotonic() - started


@pytest.fixture(scope="module", params=LANES)
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    limits = Limits(header_seconds=0.5, body_seconds=0.7, keep_alive_seconds=1, stalled_seconds=0.5, max_connections=1000)
    with serving(limits, lane=request.param) as found:
        yield found


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /echo HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Large: " + b"x" * (80 << 10) + b"\r\n\r\n",
        b"GET /echo HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"".join(b"X-%d: %s\r\n" % (number, b"y" * 100) for number in range(1000)) + b"\r\n",
        b"GET /echo?" + b"q" * (80 << 10) + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET /echo HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Endless: " + b"x" * (3 << 20),
    ],
    ids=["one large header", "many headers", "a long path", "a header without an end"],
)
def test_headers_over_64_kib_are_431_and_the_connection_ends(port: int, request_bytes: bytes) -> None:
    with connected(port) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(request_bytes)
        answer = answer_of(connection)
    assert answer.startswith(b"HTTP/1.1 431 "), answer[:200]
    assert b'"code":"limit"' in answer
    assert good_request_seconds(port) < 1


def test_headers_just_under_the_limit_are_taken(port: int) -> None:
    with connected(port) as connection:
        connection.sendall(b"GET /echo HTTP/1.1\r\nConnection: close\r\nHost: 127.0.0.1\r\nX-Large: " + b"x" * (60 << 10) + b"\r\n\r\n")
        assert answer_of(connection).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("sent", "missing"),
    [(b"", b"headers"), (b"GET /echo HTTP/1.1\r\nHo", b"headers"), (b"POST /echo HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\nhel", b"body")],
)
def test_a_client_that_does_not_finish_its_request_is_told_and_closed(port: int, sent: bytes, missing: bytes) -> None:
    with connected(port) as connection:
        connection.sendall(sent)
        answer = answer_of(connection)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"the " + missing + b" did not arrive" in answer


@pytest.mark.parametrize(("sent", "missing"), [(b"GET /echo HTTP/1.1\r\nHo", b"headers"), (GOOD[:-1], b"body")])
def test_a_later_request_on_the_same_connection_has_the_same_limits(port: int, sent: bytes, missing: bytes) -> None:
    with connected(port) as connection:
        take_one(connection)
        connection.sendall(sent)
        answer = answer_of(connection)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"the " + missing + b" did not arrive" in answer


@pytest.mark.parametrize(
    ("status", "sent", "sentence", "is_later"),
    [
        (431, b"X-Large: " + b"x" * (80 << 10) + b"\r\n\r\n", b"the headers are over the limit", False),
        (431, b"X-Endless: " + b"x" * (80 << 10), b"the headers are over the limit", True),
        (408, b"X-Slow", b"the headers did not arrive", False),
        (408, b"Content-Length: 9\r\n\r\nhel", b"the body did not arrive", True),
        (400, b"Content-Length: 9\r\nContent-Length: 8\r\n\r\n", b"this is not an HTTP request", False),
    ],
    ids=["large headers", "endless headers", "slow headers", "a slow body", "no HTTP"],
)
def test_a_request_is_refused_in_the_shape_of_its_path(port: int, status: int, sent: bytes, sentence: bytes, is_later: bool) -> None:
    with connected(port) as own, connected(port) as other:
        for path, connection in ((b"/own", own), (b"/echo", other)):
            if is_later:
                # Its head is known by then, and the parser has seen that of another path last.
                connection.sendall(b"POST %b HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\nGET /flo HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" % path)
                answer = b""
                while not answer.endswith(b"}}"):
                    answer += connection.recv(4096)
            with contextlib.suppress(ConnectionError):
                connection.sendall(b"POST %b HTTP/1.1\r\nHost: 127.0.0.1\r\n%b" % (path, sent))
        refused, native = answer_of(own), answer_of(other)
    assert refused.startswith(b"HTTP/1.1 %d " % status) and native.startswith(b"HTTP/1.1 %d " % status)
    assert refused.partition(b"\r\n\r\n")[2].startswith(b"our own: " + sentence)
    assert native.partition(b"\r\n\r\n")[2].startswith(b'{"error":{"code":') and sentence in native


def test_a_client_that_drips_its_request_is_closed_all_the_same(port: int) -> None:
    with connected(port) as connection, pytest.raises(ConnectionError):
        for byte in b"GET /echo HTTP/1.1\r\nX-Slow: " + b"x" * 10_000:
            connection.sendall(bytes([byte]))
            connection.settimeout(0.01)
            with contextlib.suppress(TimeoutError):
                if connection.recv(4096) == b"":
                    raise ConnectionError("closed by the server")


def test_an_idle_connection_is_closed_after_the_keep_alive_limit_and_serves_until_then(port: int) -> None:
    with connected(port) as connection:
        for _ in range(3):
            take_one(connection)
        assert answer_of(connection) == b""


@pytest.mark.parametrize("lane", ["asgi", "direct"])
def test_a_client_that_does_not_read_its_answer_is_cut_off(lane: Lane) -> None:
    with served(Limits(stalled_seconds=0.3), lane=lane) as (port, server), connected(port) as connection:
        connection.sendall(b"GET /flood HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert connection.recv(1)
        deadline = time.monotonic() + 10
        while server.server_state.connections:
            assert time.monotonic() < deadline, "the connection is still open"
            time.sleep(0.01)
        # What had left the server before is all that ever comes.
        assert len(answer_of(connection)) < 1000 * 65536


def test_a_chunked_body_without_an_end_is_413_and_then_closed(port: int) -> None:
    with connected(port) as connection:
        connection.sendall(b"POST /echo HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
        with contextlib.suppress(ConnectionError):
            for _ in range(40):
                connection.sendall(chunk)
        assert answer_of(connection).startswith(b"HTTP/1.1 413 ")


def test_what_is_not_http_gets_an_error_in_our_shape(port: int) -> None:
    with connected(port) as connection:
        connection.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n")
        answer = answer_of(connection)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"code":"malformed"' in answer


@pytest.mark.parametrize("lane", LANES)
def test_one_connection_too_many_is_503_with_retry_after(lane: Lane) -> None:
    with serving(Limits(max_connections=4), lane=lane) as port, contextlib.ExitStack() as stack:
        held = [stack.enter_context(connected(port)) for _ in range(4)]
        for connection in held:
            take_one(connection)
        with connected(port) as connection:
            answer = answer_of(connection)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nretry-after: 1\r\n" in answer
        take_one(held[0])


@pytest.mark.parametrize("lane", ["asgi", "direct"])
def test_500_slow_and_several_oversized_clients_leave_a_good_one_alone(lane: Lane) -> None:
    with serving(Limits(header_seconds=5.0, body_seconds=5.0), lane=lane) as port, contextlib.ExitStack() as stack:
        for number in range(500):
            connection = stack.enter_context(connected(port))
            connection.sendall(b"GET /echo HTTP/1.1\r\nX: " if number % 2 else b"POST /echo HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99\r\n\r\nx")

        def oversized(_: int) -> bytes:
            with connected(port) as connection, contextlib.suppress(ConnectionError):
                connection.sendall(b"POST /echo HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 3932160\r\n\r\n")
                for _ in range(60):
                    connection.sendall(b"x" * 65536)
                return connection.recv(12)
            return b""

        with ThreadPoolExecutor(4) as pool:
            large = pool.map(oversized, range(8))
            seconds = sorted(good_request_seconds(port) for _ in range(100))
            assert set(large) <= {b"HTTP/1.1 413", b""}
        assert seconds[98] < 1.0
