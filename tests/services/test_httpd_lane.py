"""The lane of direct routes in a real server: answers that come later, clients that leave, a server that is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest
import uvloop
from starlette.requests import Request
from starlette.responses import Response

from penstock.httpd import Access, DirectReply, DirectRequest, DirectRoute, Scope, Token, bind, routed, router, scoped, serve_app

TOKENS = (Token(value="writes", scopes=frozenset({Scope.PRODUCE})), Token(value="looks", scopes=frozenset({Scope.VIEW})))


async def by_app(request: Request) -> Response:
    return Response(b"app " + await request.body())


def serve(pipe: Connection) -> None:
    """A server whose `/wait` is answered when the test says so, and tells when its client has left. Told over the pipe what happens."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        waiting: dict[bytes, asyncio.Future[DirectReply]] = {}

        def wait(request: DirectRequest) -> asyncio.Future[DirectReply]:
            answer = waiting[request.body] = loop.create_future()
            request.when_gone(lambda: pipe.send(("gone", request.body)))
            pipe.send(("waits", request.body))
            return answer

        async def by_task(request: DirectRequest) -> DirectReply:
            return await wait(request)

        def let_go() -> None:
            body = pipe.recv()
            waiting.pop(body).set_result(DirectReply(body))

        loop.add_reader(pipe.fileno(), let_go)
        direct = [
            DirectRoute(method="POST", path="/wait", answer=wait, needs=Scope.PRODUCE),
            DirectRoute(method="POST", path="/task", answer=by_task, needs=Scope.PRODUCE),
            DirectRoute(method="POST", path="/now", answer=lambda request: DirectReply(request.body), needs=Scope.PRODUCE),
        ]
        some = DirectRoute(
            method="POST", path="/some", answer=lambda request: DirectReply(b"lane"), needs=None, takes=lambda body: not body.startswith(b"other")
        )
        app = router([*(routed(route) for route in direct), scoped("/some", by_app, None, methods=["POST"])])
        listener = bind("127.0.0.1", 0)
        pipe.send(listener.getsockname()[1])
        await serve_app(app, Access(tokens=TOKENS), listener, direct=[*direct, some])

    uvloop.run(run())


class Server:
    """The process, from outside."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("fork")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs,))
        self.process.start()
        self.port: int = self.told()

    def told(self):  # type: ignore[no-untyped-def]
        """What the server says next."""
        assert self.pipe.poll(10), "the server says nothing"
        return self.pipe.recv()

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.process.kill()
    running.process.join()


def ask(connection: http.client.HTTPConnection, path: str, body: bytes, token: str = "writes") -> None:
    connection.request("POST", path, body, {"Authorization": f"Bearer {token}"})


def take(connection: http.client.HTTPConnection) -> tuple[int, bytes]:
    answer = connection.getresponse()
    return answer.status, answer.read()


@pytest.mark.parametrize("path", ["/wait", "/task"])
def test_a_request_that_waits_is_answered_and_the_next_on_its_connection_too(server: Server, path: str) -> None:
    with contextlib.closing(server.connect()) as connection:
        for body in (b"first", b"second", b"third"):
            ask(connection, path, body)
            assert server.told() == ("waits", body)
            server.pipe.send(body)
            assert take(connection) == (200, body)


@pytest.mark.parametrize("path", ["/wait", "/task"])
def test_whoever_works_for_a_client_is_told_when_it_leaves(server: Server, path: str) -> None:
    with contextlib.closing(server.connect()) as connection:
        ask(connection, path, b"once")
        assert server.told() == ("waits", b"once")
    assert server.told() == ("gone", b"once")
    # The answer that comes then goes nowhere, and harms nobody.
    server.pipe.send(b"once")
    with contextlib.closing(server.connect()) as connection:
        ask(connection, "/now", b"good")
        assert take(connection) == (200, b"good")


@pytest.mark.parametrize("path", ["/wait", "/task"])
def test_a_server_that_is_told_to_stop_answers_what_is_under_way(server: Server, path: str) -> None:
    with contextlib.closing(server.connect()) as idle, contextlib.closing(server.connect()) as connection:
        ask(idle, "/now", b"before")
        assert take(idle) == (200, b"before")
        ask(connection, path, b"late")
        assert server.told() == ("waits", b"late")
        assert server.process.pid is not None
        os.kill(server.process.pid, signal.SIGTERM)
        # The idle one is closed, which shows that the stop has begun; only then is the other let go.
        assert idle.sock.recv(1) == b""
        server.pipe.send(b"late")
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (200, b"late")
        assert answer.headers["connection"] == "close"
        server.process.join(10)
        assert server.process.exitcode == 0


def test_a_head_that_is_known_does_not_let_another_token_in(server: Server) -> None:
    with contextlib.closing(server.connect()) as connection:
        for token, status in (("writes", 200), ("writes", 200), ("looks", 403), ("wrong", 401), ("writes", 200)):
            ask(connection, "/now", b"x", token)
            answered, body = take(connection)
            assert answered == status, body
    for token, status in (("wrong", 401), ("writes", 200), ("looks", 403)):
        with contextlib.closing(server.connect()) as another:
            ask(another, "/now", b"x", token)
            assert take(another)[0] == status


def test_many_connections_are_answered_side_by_side(server: Server) -> None:
    errors: list[object] = []

    def one(number: int) -> None:
        with contextlib.closing(server.connect()) as connection:
            for place in range(50):
                body = b"%d-%d" % (number, place) * (1 + place * 200)
                ask(connection, "/now", body)
                if take(connection) != (200, body):
                    errors.append((number, place))

    threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


@pytest.mark.parametrize("num_last", [0, 3], ids=["whole", "in parts"])
def test_what_the_lane_does_not_take_goes_to_the_app_also_behind_a_head_that_is_known(server: Server, num_last: int) -> None:
    answers = []
    with contextlib.closing(server.connect()) as connection, contextlib.closing(server.connect()) as other:
        connection.connect()
        for body in (b"one", b"two", b"other", b"three", b"others"):
            message = b"POST /some HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer writes\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
            connection.sock.sendall(message[: len(message) - num_last])
            # Once another is answered, the server has seen what was sent before.
            ask(other, "/now", b"")
            assert take(other) == (200, b"")
            connection.sock.sendall(message[len(message) - num_last :])
            answer = http.client.HTTPResponse(connection.sock, method="POST")
            answer.begin()
            answers.append(answer.read())
    assert answers == [b"lane", b"lane", b"app other", b"lane", b"app others"]
