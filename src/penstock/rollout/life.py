"""One session of a worker: from its opening to its release, everything that runs meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass, field
from uuid import uuid4

from penstock.buffer.api import ClaimedSlot
from penstock.buffer.client import BufferClient
from penstock.clock import Clock, SystemClock
from penstock.errors import InvalidError, StoreError, UnknownError
from penstock.process.points import reach
from penstock.rollout.agents import AgentHost, play_with
from penstock.rollout.bounds import Trouble
from penstock.rollout.config import WorkerConfig
from penstock.rollout.dispatch import Dispatcher
from penstock.rollout.episode import Setting, Ticket, failed_rollout, run_episode
from penstock.rollout.reporting import Reporter
from penstock.rollout.running import SlowReporter
from penstock.rollout.seeds import derived_seed
from penstock.rollout.supply import Supply
from penstock.rollout.writing import Writer
from penstock.types import Rollout

log = logging.getLogger(__name__)

BEAT_SECONDS = 2.0
REPORT_SECONDS = 1.0
OPEN_DEADLINE_SECONDS = 120.0
"""How long a worker waits for the run to be opened by the learner."""
OPEN_POLL_SECONDS = 0.2
_MOST_SLOTS = 4096
"""That the buffer gives at once."""
DRAIN_SECONDS, FLUSH_SECONDS, RELEASE_SECONDS = 4.0, 3.0, 2.0
"""When told to stop: episodes may end by themselves, what has ended is written, the session is released. Together below 10 s."""


class Stop(asyncio.Event):
    """Set when a worker is to leave."""

    trouble: Trouble | None = None
    """What is wrong with the worker: episodes that do not end by themselves have failed of it. None: it was told to leave, and they are dropped."""


@dataclass(frozen=True, slots=True, eq=False)
class Desk:
    """What a worker works with, through all its sessions."""

    config: WorkerConfig
    client: BufferClient
    writer: Writer
    supply: Supply
    setting: Setting
    reporter: Reporter
    slow: SlowReporter
    agents: AgentHost | None = None
    """Who plays the episodes, if an agent of the user's own does."""
    clock: Clock = field(default_factory=SystemClock)


class Life:
    """One session. `begin` it, then `live` it."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.session = f"{desk.config.name}-{uuid4().hex[:12]}"
        self._dispatcher = Dispatcher(desk.client, desk.supply, desk.setting.prompts, desk.config.actor, seed=desk.config.seed, clock=desk.clock)
        self._episodes: dict[asyncio.Task[None], ClaimedSlot] = {}
        self._one_ended = asyncio.Event()
        # Bounded: while the buffer does not take rollouts, no more episodes are played than fit here.
        self._finished: asyncio.Queue[Rollout | None] = asyncio.Queue(maxsize=4 * desk.config.env.concurrency)

    async def begin(self) -> None:
        """Open the session, as soon as somebody has opened the run."""
        deadline = self._desk.clock.monotonic() + OPEN_DEADLINE_SECONDS
        while True:
            try:
                await self._desk.client.open_session(self.session, self._desk.config.name)
                return
            except UnknownError as error:
                if self._desk.clock.monotonic() > deadline:
                    raise StoreError(f"run {self._desk.config.run} was not opened within {OPEN_DEADLINE_SECONDS:g} s") from error
            await self._desk.clock.sleep(OPEN_POLL_SECONDS)

    async def live(self, stop: Stop) -> None:
        """Work until told to stop, then leave in good order. Whatever fails in one task ends all of them."""
        async with asyncio.TaskGroup() as tasks:
            writing = tasks.create_task(self._write_forever())
            beating = tasks.create_task(self._beat_forever())
            reporting = tasks.create_task(self._report_forever())
            supplying = [
                tasks.create_task(self._dispatcher.run(lambda seconds: self._desk.reporter.waited("credit", seconds))),
                tasks.create_task(self._claim_forever(tasks)),
            ]
            await stop.wait()
            for task in supplying:
                task.cancel()
            await self._drain(writing, stop.trouble)
            beating.cancel()
            reporting.cancel()
        with contextlib.suppress(StoreError, TimeoutError):  # then it runs out by itself
            await asyncio.wait_for(self._desk.client.release(self.session), RELEASE_SECONDS)

    async def _drain(self, writing: asyncio.Task[None], trouble: Trouble | None) -> None:
        """Let episodes end, drop those that do not (in `trouble` they have failed), write what has ended."""
        if self._episodes:
            _, late = await asyncio.wait(self._episodes, timeout=DRAIN_SECONDS)
            log.info("%s; %d episodes are dropped, their slots go to others", trouble.sentence if trouble else "told to stop", len(late))
            for task in late:
                task.cancel()
                if trouble:
                    self._fail(self._episodes[task], trouble)
        with contextlib.suppress(asyncio.QueueFull):
            self._finished.put_nowait(None)
        await asyncio.wait({writing}, timeout=FLUSH_SECONDS)
        writing.cancel()

    def _fail(self, slot: ClaimedSlot, trouble: Trouble) -> None:
        rollout = failed_rollout(self._ticket(slot), slot.problem_id, trouble.kind, trouble.sentence)
        with contextlib.suppress(asyncio.QueueFull):  # then its slot is given back with the session
            self._finished.put_nowait(rollout)
            self._desk.reporter.episode(rollout)

    async def _beat_forever(self) -> None:
        while True:
            await self._desk.clock.sleep(BEAT_SECONDS)
            await self._desk.client.beat(self.session)

    async def _report_forever(self) -> None:
        while True:
            await self._desk.clock.sleep(REPORT_SECONDS)
            self._desk.reporter.emit(len(self._episodes))
            self._desk.slow.tell()

    async def _claim_forever(self, tasks: asyncio.TaskGroup) -> None:
        """Keep episodes in flight.

        takes: a free slot     waits for: an episode to end, when all places are taken; a slot to come free (long poll)
        gives: an episode      ends: never; a session that is over stops it
        """
        while True:
            free = self._desk.config.env.concurrency - len(self._episodes)
            if free == 0:
                self._one_ended.clear()
                await self._one_ended.wait()
                continue
            started = self._desk.clock.monotonic()
            slots = await self._desk.client.claim(self.session, min(free, _MOST_SLOTS), environments=[self._desk.config.environment])
            self._desk.reporter.waited("slot", self._desk.clock.monotonic() - started)
            if slots:
                reach("worker.after_claim")
            for slot in slots:
                task = tasks.create_task(self._episode(slot), name=f"{slot.group_id}:{slot.member}:{slot.retry}")
                self._episodes[task] = slot
                task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._episodes.pop(task, None)
        self._one_ended.set()

    def _ticket(self, slot: ClaimedSlot) -> Ticket:
        return Ticket(
            run=self._desk.config.run,
            environment=slot.environment,
            group_id=slot.group_id,
            member=slot.member,
            retry=slot.retry,
            seed=slot.seed,
            env_seed=derived_seed(self._desk.config.seed, "env", slot.group_id),
        )

    async def _episode(self, slot: ClaimedSlot) -> None:
        ticket = self._ticket(slot)
        try:
            problem = self._desk.supply.problem(slot.group_id, slot.problem_id)
        except Exception as error:  # of a source of problems, which anybody may have written
            told = str(error) if isinstance(error, InvalidError) else f"its problem raised {type(error).__name__}: {error}"
            rollout = failed_rollout(ticket, slot.problem_id, "problem", told)
        else:
            agents = self._desk.agents
            playing = play_with(agents, ticket, problem) if agents else run_episode(ticket, problem, self._desk.supply.env(), self._desk.setting)
            waits_for, steps = ("the agent", None) if agents else ("the worker", 0)
            with self._desk.setting.running.waiting(ticket.uid, waits_for, now=self._desk.clock.monotonic(), steps=steps):
                rollout = await playing
        self._desk.reporter.episode(rollout)
        await self._finished.put(rollout)

    async def _write_forever(self) -> None:
        """Write what has ended: all that has come while the last batch was being made durable goes into the next.

        takes: a finished rollout       waits for: one, then the buffer
        gives: a line in the acks log   ends: after what was there when it was told to stop
        """
        while True:
            batch = [await self._finished.get()]
            while not self._finished.empty():
                batch.append(self._finished.get_nowait())
            started = self._desk.clock.monotonic()
            rollouts = [rollout for rollout in batch if rollout is not None]
            if rollouts:
                self._desk.reporter.written(await self._desk.writer.write(rollouts))
                self._desk.reporter.waited("write", self._desk.clock.monotonic() - started)
            if len(rollouts) < len(batch):
                return
