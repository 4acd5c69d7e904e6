"""What clients of a buffer send, and how: bodies made beforehand, over kept connections, the next when the last was answered."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import uvloop

from penstock.trace import Recorder
from penstock.types import Message, Rollout, Source, VersionRun
from penstock.wire import encode_msgpack, join_items

NUM_CLIENTS = 32
GROUP_SIZE = 8
ITEM_BYTES = 2000
_LETTERS = "the valve opens when pressure falls below a limit and water runs to the turbine again "


def items(first: int, groups: int, *, item_bytes: int = ITEM_BYTES, prefix: str = "i", members: int = GROUP_SIZE) -> Iterator[bytes]:
    """Items of whole groups, group by group, with rewards that differ. Each has about `item_bytes` bytes."""
    rng = random.Random(first)
    for number in range(first, first + groups):
        for member in range(members):
            item = {
                "uid": f"{prefix}{number}-{member}-{rng.getrandbits(64):016x}",
                "instance_id": f"{prefix}{number}",
                "messages": [{"role": "user", "content": f"What is {number} + {member}?"}, {"role": "assistant", "content": ""}],
                "reward": float((number + member) % 3 == 0),
                "extra_info": {"timestamp": 1.7e9 + number, "round_number": member},
            }
            missing = max(0, item_bytes - len(json.dumps(item)))
            start = rng.randrange(len(_LETTERS))
            item["messages"][1]["content"] = (_LETTERS * (2 + missing // len(_LETTERS)))[start : start + missing]  # type: ignore[index]
            yield json.dumps(item).encode()


def lists_of(bodies: Iterable[bytes], count: int) -> Iterator[bytes]:
    """Bodies of requests with `count` items each."""
    waiting: list[bytes] = []
    for body in bodies:
        waiting.append(body)
        if len(waiting) == count:
            yield b"[%b]" % b",".join(waiting)
            waiting.clear()
    if waiting:
        yield b"[%b]" % b",".join(waiting)


def rollout_batches(run: str, first: int, groups: int, batch: int) -> list[bytes]:
    """Native rollouts of about `ITEM_BYTES` bytes each as msgpack, `batch` in a body."""
    rng = np.random.default_rng(first)
    encoded = [encode_msgpack(_rollout(run, f"s/0/{number}", member, rng)) for number in range(first, first + groups) for member in range(GROUP_SIZE)]
    return [join_items(encoded[start : start + batch]) for start in range(0, len(encoded), batch)]


def _rollout(run: str, group: str, member: int, rng: np.random.Generator) -> Rollout:
    """A prompt of 60 tokens and a reply of 120, with their text: 2 kB."""
    recorder = Recorder()
    recorder.open_message()
    recorder.append(rng.integers(0, 50_000, 60).astype(np.int32), Source.ENV)
    recorder.close_message(Message(role="user", content=_LETTERS * 3))
    recorder.open_message()
    runs = (VersionRun(policy="policy", version=0, count=120),)
    recorder.append(rng.integers(0, 50_000, 120).astype(np.int32), Source.SAMPLED, logprobs=-rng.random(120).astype(np.float32), versions=runs)
    recorder.close_message(Message(role="assistant", content=_LETTERS * 2))
    reward = float(member % 2)
    return Rollout(
        run=run,
        environment="env",
        problem_id="p",
        group_id=group,
        member=member,
        retry=0,
        rollout_uid=f"{group}:{member}",
        trace=recorder.trace(),
        reward=reward,
    )


def send_all(port: int, path: str, bodies: Sequence[bytes], *, clients: int = NUM_CLIENTS, content_type: str = "application/json") -> float:
    """Send `bodies`, shared out to clients in turn; the seconds that it took. Every answer must be 200."""
    return uvloop.run(_send_all(port, path, bodies, clients, content_type))


async def _send_all(port: int, path: str, bodies: Sequence[bytes], clients: int, content_type: str) -> float:
    loop = asyncio.get_running_loop()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {content_type}\r\nContent-Length: %d\r\n\r\n".encode()
    requests = [head % len(body) + body for body in bodies]
    made = [(await loop.create_connection(_Client, "127.0.0.1", port))[1] for _ in range(min(clients, len(bodies)))]
    started = loop.time()
    await asyncio.gather(*(client.send(requests[place :: len(made)]) for place, client in enumerate(made)))
    seconds = loop.time() - started
    for client in made:
        client.close()
    return seconds


class _Client(asyncio.Protocol):
    """One connection, one request at a time. As little work as can be: what it takes, the server does not get."""

    _transport: asyncio.Transport
    _next: Iterator[bytes]
    _done: asyncio.Future[None]

    def __init__(self) -> None:
        self._missing = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    def send(self, requests: Sequence[bytes]) -> asyncio.Future[None]:
        self._done, self._next = asyncio.get_running_loop().create_future(), iter(requests)
        self._go_on()
        return self._done

    def close(self) -> None:
        self._transport.close()

    def _go_on(self) -> None:
        following = next(self._next, None)
        if following is None:
            self._done.set_result(None)
        else:
            self._transport.write(following)

    def data_received(self, data: bytes) -> None:
        if self._missing == 0:
            head, _, body = data.partition(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200 "):
                self._done.set_exception(RuntimeError(f"refused: {data[:500]!r}"))
                return
            # Heads are small, so they come whole.
            self._missing = int(head.lower().partition(b"content-length:")[2].split(b"\r", 1)[0]) - len(body)
        else:
            self._missing -= len(data)
        if self._missing == 0:
            self._go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(exc or ConnectionError("the server has closed the connection"))
