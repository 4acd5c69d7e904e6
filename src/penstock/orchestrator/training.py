"""One life of a run: its processes are started, watched, evaluated beside, and ended.

    buffer -> learner (opens the run), servers (load its newest weights) -> workers -> ... -> learner is done -> last evaluation -> summary

Whatever ends it, everything durable is in the run's directory, and the next life goes on from there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
from collections.abc import AsyncIterator, Sequence
from uuid import uuid4

from penstock.buffer.api import RunStatus
from penstock.buffer.client import BufferClient
from penstock.clock import Clock
from penstock.errors import PenstockError, ProcessError, UnknownError, first_cause
from penstock.metrics import JsonlSink, Metrics
from penstock.orchestrator.config import RunConfig
from penstock.orchestrator.evaluation import Evaluator, read_result
from penstock.orchestrator.plan import Ports, RunPlan, plan_run
from penstock.orchestrator.rundir import RunDir
from penstock.orchestrator.state import Phase, RunState, read_state, write_state
from penstock.orchestrator.summary import Costs, Summary, summarize, write_summary
from penstock.orchestrator.watch import Watch
from penstock.process.identity import cpu_seconds, identify
from penstock.process.points import reach
from penstock.process.ports import free_ports
from penstock.process.supervisor import Supervisor, supervise

log = logging.getLogger(__name__)

LEARNER_GRACE_SECONDS, SERVER_GRACE_SECONDS, BUFFER_GRACE_SECONDS = 6.0, 1.5, 1.5
"""Together they stay below the 10 s in which a run ends when it is told to."""
OPEN_POLL_SECONDS = 0.1


class Training:
    """One life. The caller holds the run's lock; `run` is called once."""

    def __init__(self, config: RunConfig, clock: Clock) -> None:
        self._config, self._clock = config, clock
        self._run_dir: RunDir = config.run_dir
        self._name = config.run.name
        self._life = uuid4().hex[:8]
        ports = free_ports(1 + config.inference.servers)
        self._ports = Ports(buffer=ports[0], servers=ports[1:])
        self._plan: RunPlan = plan_run(config, self._run_dir, self._ports, self._owner_words)
        self._phase = Phase.STARTING
        self._reason: str | None = None
        self._updates_done: int | None = None
        self._children: Supervisor | None = None
        self._meter = _Meter(clock)
        self._earlier = Costs()

    async def run(self) -> Summary:
        """Train to the end. Raises `ProcessError` if a part cannot be kept running; cancelled, it drains first."""
        self._end_leftovers()
        try:
            await self._train()
        except asyncio.CancelledError:
            self._enter(Phase.STOPPED)
            raise
        except BaseException as error:
            self._reason = str(first_cause(error))
            self._enter(Phase.FAILED)
            raise first_cause(error) from None
        before, after = (read_result(self._run_dir, update) for update in (0, self._updates_done or 0))
        summary = summarize(self._run_dir, self._name, self._costs(), before, after)
        write_summary(self._run_dir.summary, summary)
        self._enter(Phase.FINISHED)
        return summary

    async def _train(self) -> None:
        metrics = Metrics(JsonlSink(self._run_dir.metrics), clock=self._clock)
        async with self._supervised() as children, BufferClient(self._ports.buffer_url, self._name, deadline_seconds=5.0) as buffer:
            evaluator = Evaluator(self._config, self._run_dir, children, buffer.url)
            await self._start(children, buffer, evaluator)
            watch = Watch(self._config.run, children, buffer, metrics, self._clock)
            async with asyncio.TaskGroup() as tasks:
                helpers = [tasks.create_task(evaluator.work()), tasks.create_task(watch.work(lambda status: self._seen(status, evaluator)))]
                await children.ended("learner")
                helpers[1].cancel()
                self._enter(Phase.FINISHING)
                await self._stop_sampling(children)
                status = await buffer.status()
                self._seen(status, evaluator)
                evaluator.ask(status.next_update, status.newest)
                await evaluator.done()
                helpers[0].cancel()
        metrics.close()

    @contextlib.asynccontextmanager
    async def _supervised(self) -> AsyncIterator[Supervisor]:
        """The supervisor; at the end parts are stopped in the order in which they need each other."""
        async with supervise(self._clock, self._write_state) as children:
            self._children = children
            try:
                yield children
            finally:
                if self._phase is not Phase.FINISHING:
                    self._enter(Phase.DRAINING)
                await self._stop_sampling(children)
                await children.stop("buffer", grace_seconds=BUFFER_GRACE_SECONDS)

    async def _stop_sampling(self, children: Supervisor) -> None:
        """Stop everybody who asks something of the servers and the buffer, then the servers."""
        await children.stop("learner", *(worker.name for worker in self._plan.workers), grace_seconds=LEARNER_GRACE_SECONDS)
        await children.stop(*(server.name for server in self._plan.servers), grace_seconds=SERVER_GRACE_SECONDS)

    async def _start(self, children: Supervisor, buffer: BufferClient, evaluator: Evaluator) -> None:
        plan = self._plan
        children.add(plan.buffer)
        await children.ready("buffer")
        children.add(plan.learner)
        for server in plan.servers:
            children.add(server)
        await self._opened(buffer)
        evaluator.ask(0, (await buffer.versions())[0])
        await children.ready(plan.servers[0].name)
        for worker in plan.workers:
            children.add(worker)
        self._enter(Phase.RUNNING)
        reach("orchestrator.after_start")

    async def _opened(self, buffer: BufferClient) -> RunStatus:
        """Wait until the learner has opened the run."""
        try:
            async with asyncio.timeout(self._config.run.give_up_seconds):
                while True:
                    try:
                        return await buffer.status()
                    except UnknownError:
                        await self._clock.sleep(OPEN_POLL_SECONDS)
        except TimeoutError:
            raise ProcessError(f"the learner has not opened the run within {self._config.run.give_up_seconds:g} s") from None

    def _seen(self, status: RunStatus, evaluator: Evaluator) -> None:
        """Remember how far the run is, and evaluate when it is time."""
        self._updates_done = status.next_update
        evaluator.look(status.next_update, status.newest)
        self._write_state()

    async def _owner_words(self, start: int) -> Sequence[str]:
        """Name a learner's life, and the one before if it was ours: we know it to be dead, so nobody waits for its term to expire."""
        words = ["--owner", f"train:{self._name}:{self._life}:{start}"]
        try:
            async with BufferClient(self._ports.buffer_url, self._name, deadline_seconds=5.0) as buffer:
                term = (await buffer.status()).term
        except PenstockError:
            return words
        return [*words, "--replaces", term.owner] if term is not None and term.owner.startswith(f"train:{self._name}:") else words

    def _end_leftovers(self) -> None:
        """Take over from the life before: its costs, and its children if any have outlived it."""
        before = read_state(self._run_dir.state)
        if before is None:
            return
        self._earlier = Costs(wall_seconds=before.wall_seconds, cpu_seconds=before.cpu_seconds, restarts=before.restarts)
        for part in before.parts:
            if part.process is not None and part.process.is_alive:
                log.warning("%s of an earlier life (pid %d) is still there and is ended", part.name, part.process.pid)
                part.process.kill_group()

    def _enter(self, phase: Phase) -> None:
        self._phase = phase
        self._write_state()

    def _costs(self) -> Costs:
        parts = self._children.status() if self._children is not None else ()
        running = sum(cpu_seconds(part.process.pid) for part in parts if part.process is not None)
        return Costs(
            wall_seconds=self._earlier.wall_seconds + self._meter.wall_seconds(),
            cpu_seconds=self._earlier.cpu_seconds + self._meter.cpu_seconds() + running,
            restarts=self._earlier.restarts + sum(part.restarts for part in parts),
        )

    def _write_state(self) -> None:
        costs = self._costs()
        state = RunState(
            run=self._name,
            phase=self._phase,
            orchestrator=identify(os.getpid()),
            buffer_url=self._ports.buffer_url,
            updates=self._config.run.updates,
            updates_done=self._updates_done or 0,
            parts=self._children.status() if self._children is not None else (),
            reason=self._reason,
            wall_seconds=costs.wall_seconds,
            cpu_seconds=costs.cpu_seconds,
            restarts=costs.restarts,
            written_at=self._clock.now(),
        )
        write_state(self._run_dir.state, state)


class _Meter:
    """What this process and its reaped children have used since it was made."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wall, self._cpu = clock.monotonic(), self._used()

    def wall_seconds(self) -> float:
        return self._clock.monotonic() - self._wall

    def cpu_seconds(self) -> float:
        return self._used() - self._cpu

    @staticmethod
    def _used() -> float:
        usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(usage.ru_utime + usage.ru_stime for usage in usages)
