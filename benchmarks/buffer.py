"""The rollout buffer as a service: durable writes, many open groups, large reads and memory, beside a pipeline on dicts behind FastAPI.

python benchmarks/buffer.py [--json] [--quick]

Servers are processes of their own, and what a figure "per CPU second" or "CPU" counts is the server's time alone. Rates are wall time and depend on
what else the machine does, so its load and the limits of its disk and memory are reported beside them. `--quick` opens and reads fewer groups and
leaves out the memory after a million items.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from _buffer_load import GROUP_SIZE, ITEM_BYTES, NUM_CLIENTS, items, lists_of, rollout_batches, send_all
from _buffer_server import Server, our_server, peer_server
from _report import Result, against, arguments, at_least, bounded, report

PEER = "dicts behind FastAPI"
WRITE, READ = "/buffer/write", "/get_rollout_data"


def main() -> None:
    options = arguments(__doc__)
    # As an exception, so that servers are stopped and their files removed on the way out.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    # Beside the caller and not in /tmp, which may be memory.
    with tempfile.TemporaryDirectory(dir=".") as scratch:
        for result in figures(Path(scratch), quick=options.quick):
            report(result, as_json=options.json)


def figures(scratch: Path, *, quick: bool) -> Iterator[Result]:
    rounds = 3 if quick else 7
    yield from limits(scratch, rounds)
    yield from writing(scratch / "writing", 4 * rounds)
    yield native_batches(scratch / "native", rounds)
    yield from open_groups(scratch / "open", 4 * rounds, count=20_000 if quick else 100_000)
    yield reading(scratch / "reading", 3, groups=2_000 if quick else 10_000)
    if not quick:
        yield memory(scratch / "memory")


def limits(scratch: Path, rounds: int) -> Iterator[Result]:
    """What the machine can do at all, now. Not goals: they say what the rates below are worth."""
    yield at_least("machine: processes that want a core", os.getloadavg()[0], "load", goal=0)
    for batch in (1, NUM_CLIENTS):
        yield at_least(f"machine: appends of 2 kB, {batch} to an fdatasync", appends_per_second(scratch / "appends", batch, rounds), "writes/s", goal=0)
    source, target = np.ones(1 << 26, np.uint8), np.empty(1 << 26, np.uint8)
    seconds = statistics.median(_cpu_seconds(lambda: np.copyto(target, source)) for _ in range(rounds + 1))
    yield at_least("machine: memcpy", len(source) / seconds / 1e9, "GB/CPU s", goal=0)


def appends_per_second(path: Path, batch: int, rounds: int) -> float:
    data, syncs = os.urandom(ITEM_BYTES * batch), 50
    rates = []
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for _ in range(rounds):
        started = time.perf_counter()
        for _ in range(syncs):
            os.write(file, data)
            os.fdatasync(file)
        rates.append(batch * syncs / (time.perf_counter() - started))
    os.close(file)
    return statistics.median(rates)


def writing(scratch: Path, rounds: int) -> Iterator[Result]:
    """One item of 2 kB in a request, 32 clients, in turns."""
    scratch.mkdir()
    groups = 250
    per_cpu_second: dict[str, list[float]] = {"ours": [], "peer": []}
    walls: list[float] = []
    with our_server(scratch / "ours") as ours, peer_server(scratch / "peer") as peer:
        for turn in range(rounds + 1):
            bodies = list(items(turn * groups, groups))
            sides = (("ours", ours), ("peer", peer))
            for name, server in sides if turn % 2 else reversed(sides):
                cpu_seconds, seconds = _sent(server, bodies)
                # The first round warms up.
                if turn:
                    per_cpu_second[name].append(len(bodies) / cpu_seconds)
                if turn and server is ours:
                    walls.append(len(bodies) / seconds)
    value, beside = (statistics.median(per_cpu_second[name]) for name in ("ours", "peer"))
    # Round by round: the machine is faster in one than in another.
    ratio = statistics.median(ours / peer for ours, peer in zip(per_cpu_second["ours"], per_cpu_second["peer"], strict=True))
    name = "compatible writes of 2 kB, 32 clients, per server CPU second"
    yield against(name, value, "writes", peer=PEER, peer_value=beside, goal=1.5, ratio=ratio)
    yield at_least("compatible writes of 2 kB, 32 clients, durable", statistics.median(walls), "writes/s", goal=2_000)


def native_batches(scratch: Path, rounds: int) -> Result:
    """Rollouts of 2 kB as msgpack, 64 in a request: four requests of each of 32 clients in a round, one after the other."""
    scratch.mkdir()
    groups, rates = 1024, []
    with our_server(scratch / "ours") as server:
        laws = {"credit_groups": 10**9}
        server.ask("/v1/runs/bench", json.dumps({"laws": laws, "initial_digest": "0" * 32}).encode())
        for turn in range(rounds + 1):
            names = [f"s/0/{number}" for number in range(turn * groups, (turn + 1) * groups)]
            wanted = [{"id": name, "environment": "env", "problem_id": "p", "size": GROUP_SIZE, "first_estimate": 200} for name in names]
            server.ask("/v1/runs/bench/groups", json.dumps({"groups": wanted}).encode())
            bodies = rollout_batches("bench", turn * groups, groups, 64)
            seconds = send_all(server.port, "/v1/runs/bench/rollouts", bodies, clients=NUM_CLIENTS, content_type="application/msgpack")
            rates.append(groups * GROUP_SIZE / seconds)
    return at_least("native writes of 2 kB in batches of 64, durable", statistics.median(rates[1:]), "rollouts/s", goal=10_000)


def open_groups(scratch: Path, rounds: int, *, count: int) -> Iterator[Result]:
    """The same traffic into two buffers, of which one holds `count` open groups and the other 100; then polls of that one, which has nothing ready."""
    scratch.mkdir()
    groups = 125
    costs: dict[str, list[float]] = {"few": [], "many": []}
    with our_server(scratch / "few") as few, our_server(scratch / "many") as many:
        for server, num_open in ((few, 100), (many, count)):
            for body in lists_of(items(0, num_open, item_bytes=0, prefix="open", members=1), 2_000):
                server.ask(WRITE, body)
        for turn in range(rounds + 1):
            bodies = list(items(turn * groups, groups))
            sides = (("few", few), ("many", many))
            for name, server in sides if turn % 2 else reversed(sides):
                cpu_seconds, _ = _sent(server, bodies)
                server.ask(READ, b"{}")
                # The first round warms up.
                if turn:
                    costs[name].append(cpu_seconds / len(bodies) * 1e6)
        value, beside = (statistics.median(costs[name]) for name in ("many", "few"))
        ratio = statistics.median(at_few / at_many for at_few, at_many in zip(costs["few"], costs["many"], strict=True))
        yield against(f"CPU of a write at {count:,} open groups", value, "us", peer="at 100 open groups", peer_value=beside, goal=1 / 1.2, ratio=ratio)
        polls = [_wall_seconds(lambda: many.ask(READ, b"{}")) for _ in range(50)]
    yield bounded(f"poll with nothing ready at {count:,} open groups", statistics.median(polls) * 1e3, "ms", goal=5)


def reading(scratch: Path, rounds: int, *, groups: int) -> Result:
    """Everything in one reply."""
    scratch.mkdir()
    costs: dict[str, list[float]] = {"ours": [], "peer": []}
    with our_server(scratch / "ours") as ours, peer_server(scratch / "peer") as peer:
        for turn in range(rounds):
            for body in lists_of(items(turn * groups, groups), 2_000):
                ours.ask(WRITE, body)
                peer.ask(WRITE, body)
            for name, server in (("ours", ours), ("peer", peer)):
                before = server.cpu_seconds
                found = json.loads(server.ask(READ, b"{}"))["data"]["data"]
                costs[name].append(server.cpu_seconds - before)
                assert len(found) == groups * GROUP_SIZE, len(found)
    value, beside = (statistics.median(costs[name]) for name in ("ours", "peer"))
    return against(f"CPU of a read of {groups:,} groups of 8", value, "s", peer=PEER, peer_value=beside, goal=1.3)


def memory(scratch: Path) -> Result:
    """A million items of 2 kB of which none was read: nothing that it holds could be let go."""
    scratch.mkdir()
    with our_server(scratch / "ours") as server:
        bodies = lists_of(items(0, 1_000_000 // GROUP_SIZE), 1_000)
        while some := list(islice(bodies, 16)):
            send_all(server.port, WRITE, some, clients=2)
        return bounded("resident memory after 1,000,000 items", server.resident_bytes / 1e6, "MB", goal=500)


def _sent(server: Server, bodies: Sequence[bytes]) -> tuple[float, float]:
    """CPU time of the server for these writes, and the wall time."""
    before = server.cpu_seconds
    seconds = send_all(server.port, WRITE, bodies)
    return server.cpu_seconds - before, seconds


def _wall_seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _cpu_seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


if __name__ == "__main__":
    main()
