"""What a request costs a server beside its own work: a POST of 2 kB that comes back, over 32 kept connections, by each lane and as bare bytes.

python benchmarks/lanes.py --json [--quick]
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import statistics
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import cast

import uvloop
from starlette.types import ASGIApp

from _buffer_load import NUM_CLIENTS, send_all
from _report import against, arguments, process_cpu_seconds, report
from penstock.httpd import Access, DirectReply, DirectRequest, DirectRoute, Scope, bind, routed, router, serve_app

BODY = b"x" * 2048
GOAL = 1 / 1.4
"""Of the bare echo's price."""

ECHO = DirectRoute(method="POST", path="/echo", answer=lambda request: DirectReply(request.body), needs=Scope.PRODUCE)


def later(request: DirectRequest) -> asyncio.Future[DirectReply]:
    """An answer that comes with the loop's next turn, as one from a store does."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[DirectReply] = loop.create_future()
    loop.call_soon(answer.set_result, DirectReply(request.body))
    return answer


LATER = DirectRoute(method="POST", path="/echo", answer=later, needs=Scope.PRODUCE)


class Bare(asyncio.Protocol):
    """Knows no HTTP: the last bytes that came go back, behind a head that a client can read."""

    head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(BODY)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.transport.write(self.head + data[-len(BODY) :])


def served(direct: tuple[DirectRoute, ...], app: ASGIApp) -> Callable[[int], None]:
    """A server with these routes."""

    def run(descriptor: int) -> None:
        listener = bind("127.0.0.1", 0)
        os.write(descriptor, b"%d\n" % listener.getsockname()[1])
        uvloop.run(serve_app(app, Access(), listener, direct=direct))

    return run


def bare(descriptor: int) -> None:
    """The least that a server can do."""

    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(Bare, "127.0.0.1", 0)
        os.write(descriptor, b"%d\n" % server.sockets[0].getsockname()[1])
        await server.serve_forever()

    uvloop.run(run())


SERVERS: dict[str, Callable[[int], None]] = {
    "bare": bare,
    "direct": served((ECHO,), router([routed(ECHO)])),
    "later": served((LATER,), router([routed(LATER)])),
    "asgi": served((), router([routed(ECHO)])),
}


def _child(name: str, descriptor: int, _: Connection) -> None:
    SERVERS[name](descriptor)


def measured(rounds: int, requests: int) -> dict[str, float]:
    """CPU microseconds of the server per request, by server: the medians over rounds in which each has its turn."""
    context = multiprocessing.get_context("fork")
    ports, children = {}, {}
    for name in SERVERS:
        reading, writing = os.pipe()
        child = context.Process(target=_child, args=(name, writing, None), daemon=True)
        child.start()
        os.close(writing)
        ports[name], children[name] = int(os.read(reading, 16)), child
        os.close(reading)
    bodies = [BODY] * requests
    costs: dict[str, list[float]] = {name: [] for name in SERVERS}
    for number in range(rounds + 1):
        for name, child in children.items():
            assert child.pid is not None
            before = process_cpu_seconds(child.pid)
            send_all(ports[name], "/echo", bodies if number else bodies[:2000], clients=NUM_CLIENTS)
            if number:
                costs[name].append((process_cpu_seconds(child.pid) - before) / requests * 1e6)
    for child in children.values():
        child.terminate()
        child.join()
    return {name: statistics.median(values) for name, values in costs.items()}


def main() -> None:
    """Measure and report."""
    words = arguments(__doc__)
    cost = measured(*((3, 10_000) if words.quick else (7, 30_000)))
    unit, peer = "CPU us/request", "bare bytes over asyncio"
    report(against("http direct lane", cost["direct"], unit, peer=peer, peer_value=cost["bare"], goal=GOAL), as_json=words.json)
    report(against("http direct lane, answered later", cost["later"], unit, peer=peer, peer_value=cost["bare"], goal=GOAL), as_json=words.json)
    report(against("http direct lane beside asgi", cost["direct"], unit, peer="the asgi lane", peer_value=cost["asgi"], goal=2.0), as_json=words.json)


if __name__ == "__main__":
    main()
