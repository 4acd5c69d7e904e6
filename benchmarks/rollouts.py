"""Rollouts: what a turn costs the worker and the gateway, many slow episodes at once, and long ones.

python benchmarks/rollouts.py [--json] [--quick]
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import uvloop

from _gateway_turns import gateway_cpu_seconds
from _report import Result, against, arguments, at_least, bounded, report
from penstock.chat import ChatTemplate, write_byte_tokenizer
from penstock.envs import Observation
from penstock.envs import Reply as Said
from penstock.inference.client import Continuation, InferenceClient, Reply, Sampler
from penstock.process.garbage import collect_seldom
from penstock.rollout.config import ActorConfig
from penstock.rollout.dialogue import Prompts
from penstock.rollout.engine_policy import EnginePolicy
from penstock.rollout.episode import Setting, Ticket, run_episode
from penstock.rollout.servers import Servers
from penstock.types import InferenceMetadata, Message, Problem, Rollout, RolloutStatus, VersionRun

EPISODE_TURNS = 10
ROOM = "You are in the %s room. There is a door to the north, a table with a lamp, and a key on the floor. What do you do?"
LONG_TURNS = 128


@dataclass
class Rooms:
    """A world of 64 rooms, so that what is seen comes again as it does in small worlds. Each step takes as long as it is told to."""

    turns: int = EPISODE_TURNS
    latency_seconds: float = 0.0
    taken: int = 0
    start: int = 0

    async def open(self, problem: Problem, seed: int) -> Observation:
        self.start = int(problem.id)
        return Observation(messages=(Message(role="user", content=ROOM % problem.id),))

    async def step(self, reply: Said) -> Observation:
        self.taken += 1
        if self.latency_seconds:
            await asyncio.sleep(self.latency_seconds)
        if self.taken == self.turns:
            return Observation(done=True)
        room = str((self.start + 7 * self.taken) % 64)
        return Observation(messages=(Message(role="user", content=ROOM % room),), observation={"room": room})

    async def score(self, rollout: Rollout) -> dict[str, float]:
        return {"found": 1.0}


@dataclass
class TimedRooms(Rooms):
    """The same, with a look at the clock."""

    ticks: list[float] = field(default_factory=list)
    """CPU seconds of this thread at each step."""

    async def step(self, reply: Said) -> Observation:
        self.ticks.append(time.thread_time())
        return await super().step(reply)


def ticket(number: int) -> Ticket:
    return Ticket(run="bench", environment="rooms", group_id=f"rooms:train/0/{number // 8}", member=number % 8, retry=0, seed=number, env_seed=0)


def problem(number: int) -> Problem:
    return Problem(id=str(number // 8), environment="rooms", prompt=())


async def play(number: int, setting: Setting, env: Rooms) -> None:
    rollout = await run_episode(ticket(number), problem(number), env, setting)
    assert rollout.status is RolloutStatus.OK, rollout.failure


async def pooled(count: int, at_once: int, work: Callable[[int], Awaitable[None]]) -> None:
    """Do `work` for 0..count-1, so many at a time."""
    numbers = iter(range(count))

    async def one() -> None:
        for number in numbers:
            await work(number)

    await asyncio.gather(*(one() for _ in range(at_once)))


@contextlib.contextmanager
def stub_server() -> Iterator[str]:
    """URL of a server that answers at once, in a process of its own."""
    process = subprocess.Popen([sys.executable, str(Path(__file__).with_name("_stub_server.py"))], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.kill()
        process.wait()


def setting_of(sampler: Sampler, template: ChatTemplate) -> Setting:
    limits = ActorConfig(max_tokens=64, max_episode_steps=10_000, max_episode_tokens=1_000_000, episode_seconds=3600.0)
    return Setting(policy=EnginePolicy(sampler=sampler, template=template), prompts=Prompts(template), limits=limits)


class Noting(InferenceClient):
    """Keeps what it sends."""

    bodies: list[bytes]

    async def _send(self, method: str, path: str, body: bytes | None, seconds: float) -> Any:
        self.bodies.append(body or b"")
        return await super()._send(method, path, body, seconds)


async def bodies_of(url: str, template: ChatTemplate) -> list[bytes]:
    """What one episode sends."""
    async with Noting(url) as client:
        client.bodies = []
        await play(0, setting_of(Servers([client]).sampler(), template), Rooms())
        return client.bodies


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Of a turn."""

    cpu_seconds: float
    per_second: float


async def costs(episode: Callable[[int], Awaitable[None]], episodes: int = 128) -> Costs:
    """What turns cost when 64 episodes are under way."""
    wall, cpu, turns = time.perf_counter(), time.process_time(), episodes * EPISODE_TURNS
    await pooled(episodes, 64, episode)
    return Costs(cpu_seconds=(time.process_time() - cpu) / turns, per_second=turns / (time.perf_counter() - wall))


async def turn_costs(url: str, template: ChatTemplate, rounds: int) -> tuple[Result, Result]:
    """Turns a second of the worker, and what a turn costs it beside a bare client that sends the same bytes.

    The machine is not equally fast from second to second. So the two take turns many times, each being first as often as the other, and it is the ratios of
    the rounds that are compared.
    """
    bodies = await bodies_of(url, template)
    async with InferenceClient(url) as client, aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        setting = setting_of(Servers([client]).sampler(), template)

        async def post(number: int) -> None:
            for body in bodies:
                async with session.post(f"{url}/v1/completions", data=body, headers={"Content-Type": "application/json"}) as answer:
                    await answer.read()

        async def ours(number: int) -> None:
            await play(number, setting, Rooms())

        worker, bare = [], []
        for number in range(rounds + 2):
            if number % 2:
                worker.append(await costs(ours))
            bare.append(await costs(post))
            if not number % 2:
                worker.append(await costs(ours))
    worker, bare = worker[2:], bare[2:]  # the first two warm up
    return (
        at_least("rollouts/turns_per_second", statistics.median(one.per_second for one in worker), "turns/s", goal=1000),
        against(
            "rollouts/turn_cpu",
            statistics.median(one.cpu_seconds for one in worker) * 1e6,
            "us",
            peer="a bare aiohttp client that sends the same bytes",
            peer_value=statistics.median(one.cpu_seconds for one in bare) * 1e6,
            ratio=statistics.median(theirs.cpu_seconds / one.cpu_seconds for one, theirs in zip(worker, bare, strict=True)),
            goal=1 / 1.5,
        ),
    )


class AtOnce:
    """A sampler without a server: no request is encoded."""

    def __init__(self, template: ChatTemplate) -> None:
        ids = np.array([*template.encode_text("go to the door.").tolist(), template.eos_ids[0]], np.int32)
        versions = (VersionRun(policy="policy", version=3, count=len(ids)),)
        metadata = InferenceMetadata(finish_reason="stop")
        self._reply = Reply(ids=ids, logprobs=np.full(len(ids), -0.5, np.float32), versions=versions, text="go to the door.", metadata=metadata)

    async def complete(self, wanted: Continuation, *, deadline_seconds: float | None = None) -> Reply:
        return self._reply


async def long_episodes(template: ChatTemplate, repeats: int) -> Result:
    """The last turns of a long episode beside its first: eight of each, medians over repeats."""
    first, last = [], []
    setting = setting_of(AtOnce(template), template)
    await play(0, setting, Rooms(turns=LONG_TURNS))  # so that first turns, too, see what was rendered before
    for _ in range(repeats):
        env = TimedRooms(turns=LONG_TURNS)
        await play(0, setting, env)
        costs = np.diff(env.ticks)
        first.append(float(costs[:8].mean()))
        last.append(float(costs[-8:].mean()))
    return against("rollouts/turn_128", statistics.median(last) * 1e6, "us", peer="the first turns", peer_value=statistics.median(first) * 1e6, goal=1 / 1.3)


async def many_slow(url: str, template: ChatTemplate, episodes: int, latency_seconds: float) -> tuple[float, float]:
    """Share of the ideal speed of episodes that all run at once and mostly wait for their environment, and megabytes of this process at its largest."""
    async with InferenceClient(url) as client:
        setting = setting_of(Servers([client]).sampler(), template)
        # As in a run, where they were claimed one after the other: they do not all step in the same moment.
        start = time.perf_counter()

        async def one(number: int) -> None:
            await asyncio.sleep(latency_seconds * number / episodes)
            await play(number, setting, Rooms(latency_seconds=latency_seconds))

        await asyncio.gather(*(one(number) for number in range(episodes)))
        seconds = time.perf_counter() - start
    # Over the time in which all of them were there: the first began one latency before the last.
    ideal_seconds = (EPISODE_TURNS + 1) * latency_seconds
    return ideal_seconds / seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def results(as_json: bool, quick: bool) -> None:
    with tempfile.TemporaryDirectory() as directory, stub_server() as url:
        write_byte_tokenizer(Path(directory), "chatml")
        template = ChatTemplate.load(Path(directory))
        for result in await turn_costs(url, template, 20 if quick else 60):
            report(result, as_json=as_json)
        report(await long_episodes(template, 9 if quick else 25), as_json=as_json)
        report(
            bounded("rollouts/gateway_turn_cpu", 1e3 * await gateway_cpu_seconds(url, Path(directory), 15 if quick else 40), "ms", goal=1.0), as_json=as_json
        )
        episodes, latency_seconds = (2000, 1.0) if quick else (2000, 4.0)
        share, megabytes = await many_slow(url, template, episodes // 4 if quick else episodes, latency_seconds)
        report(at_least("rollouts/slow_episodes_share_of_ideal", share, "share", goal=0.9), as_json=as_json)
        report(bounded("rollouts/slow_episodes_memory", megabytes, "MB", goal=1000), as_json=as_json)


if __name__ == "__main__":
    words = arguments(__doc__)
    collect_seldom()  # as a worker does
    uvloop.run(results(words.json, words.quick))
