"""What a turn through the gateway costs it, with its journal in a real buffer: CPU of its own process."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp

from _report import process_cpu_seconds
from penstock.buffer.client import BufferClient
from penstock.types import Laws

TURNS, AT_ONCE = 10, 8
SAID = "You are in the %s room. There is a door to the north, a table with a lamp, and a key on the floor. What do you do?"
_numbers = count()


@contextlib.contextmanager
def server(directory: Path, name: str, *words: str) -> Iterator[tuple[str, int]]:
    """URL and pid of a process of ours, once it takes connections."""
    port_file = directory / f"{name}.port"
    command = [sys.executable, "-m", "penstock", name, *words, "--port", "0", "--port-file", str(port_file)]
    with (directory / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        while not port_file.exists():
            assert process.poll() is None, (directory / f"{name}.log").read_text()
            time.sleep(0.01)
        yield f"http://127.0.0.1:{port_file.read_text()}", process.pid
    finally:
        process.kill()
        process.wait()


async def gateway_cpu_seconds(engine_url: str, directory: Path, rounds: int) -> float:
    """CPU seconds of the gateway for each turn, from the opening to the end of sessions of ten turns, eight at a time.

    The median of rounds of two sessions each of the eight: whatever else the machine does falls into some of them.
    """
    with server(directory, "buffer", "--dir", str(directory / "buffer")) as (buffer_url, _):
        async with BufferClient(buffer_url, "run") as client:
            await client.open_run(Laws(credit_tokens=10**9), "0" * 32)
        words = ("--engine", engine_url, "--buffer", buffer_url, "--model", str(directory), "--run", "run")
        with server(directory, "gateway", *words) as (url, pid):
            async with aiohttp.ClientSession() as http:
                costs = []
                for number in range(rounds + 2):
                    start = process_cpu_seconds(pid)
                    await _sessions(http, url, 2 * AT_ONCE)
                    if number >= 2:  # the first warm up
                        costs.append((process_cpu_seconds(pid) - start) / (2 * AT_ONCE * TURNS))
                return statistics.median(costs)


async def _sessions(http: aiohttp.ClientSession, url: str, count: int) -> None:
    numbers = iter(range(count))

    async def one() -> None:
        for _ in numbers:
            await _session(http, url)

    await asyncio.gather(*(one() for _ in range(AT_ONCE)))


async def _session(http: aiohttp.ClientSession, url: str) -> None:
    opened = await _post(http, f"{url}/sessions", {})
    messages: list[dict[str, Any]] = []
    first = next(_numbers)
    for turn in range(TURNS):
        # As many rooms as the worker's world has: what is seen comes again, but not in every turn.
        messages.append({"role": "user", "content": SAID % ((first + 7 * turn) % 64)})
        answer = await _post(http, f"{opened['base_url']}/chat/completions", {"model": "policy", "messages": messages, "max_tokens": 64})
        message = answer["choices"][0]["message"]
        messages.append({"role": "assistant", "content": message["content"]})
    ended = await _post(http, f"{url}/sessions/{opened['id']}/end", {"reward": 1.0})
    assert ended["stored"]["fate"] == "accepted", ended["stored"]


async def _post(http: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> dict[str, Any]:
    async with http.post(url, json=body) as answer:
        assert answer.status < 300, await answer.text()
        found: dict[str, Any] = await answer.json()
        return found
