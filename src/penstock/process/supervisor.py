"""Keeps children running: starts them, waits until they are ready, starts them again when they die, and stops with a reason when they keep dying.

    async with supervise(clock) as children:
        children.add(buffer)
        await children.ready("buffer")
        children.add(learner)
        await children.ended("learner")
        await children.stop("buffer", grace_seconds=2.0)

A child that is given up cancels the block, and `ProcessError` comes out of it in an exception group. Whatever still runs when the block ends is ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from enum import StrEnum

from penstock.clock import Clock
from penstock.errors import ProcessError
from penstock.process.child import Child, ChildSpec, start_child
from penstock.process.health import LIVE_FAILURES, LIVE_TIMEOUT_SECONDS, Health
from penstock.process.identity import ProcessId
from penstock.process.logs import last_lines, last_words
from penstock.process.restarts import GiveUp, after_death, describe_exit
from penstock.process.spares import Spare

log = logging.getLogger(__name__)

_LAST_LINES = 12
_LAST_GRACE_SECONDS = 1.0


class PartState(StrEnum):
    """Where a part is in its life."""

    STARTING = "starting"
    READY = "ready"
    PAUSED = "paused"
    """Dead, and to be started again."""
    ENDED = "ended"
    """Done, by itself."""
    STOPPED = "stopped"
    """Ended because it was told to."""
    GIVEN_UP = "given up"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartStatus:
    """A part, as others may see it."""

    name: str
    state: PartState
    process: ProcessId | None
    restarts: int
    url: str | None = None
    last_exit: str | None = None
    """How it ended the last time it did, and why if it said so."""


class Supervisor:
    """See the module's docstring. Made by `supervise`."""

    def __init__(self, clock: Clock, health: Health, tasks: asyncio.TaskGroup, on_change: Callable[[], None]) -> None:
        self._clock = clock
        self._health = health
        self._tasks = tasks
        self._on_change = on_change
        self._parts: dict[str, _Part] = {}
        self._progress_seconds = -math.inf

    def add(self, spec: ChildSpec) -> None:
        """Start a part and keep it running."""
        assert spec.name not in self._parts, spec.name
        part = self._parts[spec.name] = _Part(spec, self._clock)
        part.keeper = self._tasks.create_task(self._keep(part))

    async def ready(self, *names: str) -> None:
        """Wait until all of these are ready."""
        for name in names:
            await self._parts[name].is_ready.wait()

    async def ended(self, name: str) -> None:
        """Wait until a part is done, by itself."""
        await self._parts[name].has_ended.wait()

    def forget(self, name: str) -> None:
        """Take a part that is done off the list; its name may be used again."""
        assert self._parts[name].state is PartState.ENDED, name
        del self._parts[name]

    def kill(self, name: str, trouble: str) -> None:
        """End a part that is in `trouble`, of which its process says nothing; it is started again."""
        part = self._parts[name]
        if part.child is not None:
            part.trouble = trouble
            part.child.kill()

    def progress(self) -> None:
        """Something got done: deaths up to now do not count against anybody."""
        self._progress_seconds = self._clock.monotonic()

    def status(self) -> tuple[PartStatus, ...]:
        """All parts, in the order they were added."""
        return tuple(part.status() for part in self._parts.values())

    async def stop(self, *names: str, grace_seconds: float) -> None:
        """End these parts, all at once, and wait until they are gone. Each may use `grace_seconds` to end well."""
        await asyncio.gather(*(self._stop(self._parts[name], grace_seconds) for name in names if name in self._parts))

    async def stop_all(self, *, grace_seconds: float) -> None:
        """End every part that is left."""
        await self.stop(*self._parts, grace_seconds=grace_seconds)

    async def _stop(self, part: _Part, grace_seconds: float) -> None:
        if part.keeper is not None and not part.keeper.done():
            part.keeper.cancel()
            await asyncio.gather(part.keeper, return_exceptions=True)
        if part.child is not None:
            await part.child.stop(grace_seconds)
            part.child = None
        await part.spare.stop()
        if part.state not in (PartState.ENDED, PartState.GIVEN_UP):
            self._enter(part, PartState.STOPPED)

    async def _keep(self, part: _Part) -> None:
        """Keep one part running. Ends when it is done; raises `ProcessError` when it is given up."""
        while True:
            exit_code = await self._live(part)
            part.last_exit = part.trouble or _ending(part, exit_code)
            if part.spec.ends and exit_code == 0:
                self._enter(part, PartState.ENDED)
                await part.spare.stop()
                return
            part.deaths_seconds.append(self._clock.monotonic())
            verdict = after_death(exit_code, part.deaths_seconds, part.spec.policy, progress_seconds=self._progress_seconds)
            if isinstance(verdict, GiveUp):
                self._enter(part, PartState.GIVEN_UP)
                raise ProcessError(_sentence(part, verdict.reason))
            self._enter(part, PartState.PAUSED)
            log.warning(
                "%s has died (%s); it is started again%s", part.spec.name, part.last_exit, f" in {verdict.pause_seconds:g} s" * bool(verdict.pause_seconds)
            )
            await self._clock.sleep(verdict.pause_seconds)
            part.starts += 1

    async def _live(self, part: _Part) -> int:
        """One life of a part, from its start to its end; how it ended."""
        part.trouble = None
        self._enter(part, PartState.STARTING)
        arguments = await part.spec.arguments(part.starts)
        child = await part.spare.take(arguments)
        if child is None:
            child = await start_child((*part.spec.program, *arguments), log=part.spec.log, environment=part.spec.environment)
        part.child = child
        async with asyncio.TaskGroup() as tasks:
            helpers = [tasks.create_task(self._guard(part, child)), tasks.create_task(part.spare.make())]
            exit_code = await child.wait()
            for helper in helpers:
                helper.cancel()
        part.child = None
        return exit_code

    async def _guard(self, part: _Part, child: Child) -> None:
        """Say when a child is ready; kill it if it does not become so, or stops answering."""
        if part.spec.url is None:
            self._enter(part, PartState.READY)
            return
        if not await self._health.ready(part.spec.url, part.spec.ready_seconds):
            part.trouble = f"not ready after {part.spec.ready_seconds:g} s"
        else:
            self._enter(part, PartState.READY)
            await self._health.hung(part.spec.url)
            part.trouble = f"no answer to {LIVE_FAILURES} questions of {LIVE_TIMEOUT_SECONDS:g} s"
        child.kill()

    def _enter(self, part: _Part, state: PartState) -> None:
        part.state = state
        for event, holds in ((part.is_ready, state is PartState.READY), (part.has_ended, state is PartState.ENDED)):
            if holds:
                event.set()
            else:
                event.clear()
        self._on_change()


class _Part:
    """What a supervisor knows about one part."""

    def __init__(self, spec: ChildSpec, clock: Clock) -> None:
        self.spec = spec
        self.spare = Spare(spec, clock)
        self.state = PartState.STARTING
        self.child: Child | None = None
        self.keeper: asyncio.Task[None] | None = None
        self.starts = 0
        # No more are ever looked at.
        self.deaths_seconds: deque[float] = deque(maxlen=max(spec.policy.limit, len(spec.policy.pauses_seconds)))
        self.trouble: str | None = None
        self.last_exit: str | None = None
        self.is_ready = asyncio.Event()
        self.has_ended = asyncio.Event()

    def status(self) -> PartStatus:
        return PartStatus(
            name=self.spec.name,
            state=self.state,
            process=None if self.child is None else self.child.id,
            restarts=self.starts,
            url=self.spec.url,
            last_exit=self.last_exit,
        )


@contextlib.asynccontextmanager
async def supervise(clock: Clock, on_change: Callable[[], None] = lambda: None) -> AsyncIterator[Supervisor]:
    """A supervisor for the time of a block. `on_change` is called after every change of a part's state."""
    async with Health(clock) as health, asyncio.TaskGroup() as tasks:
        supervisor = Supervisor(clock, health, tasks, on_change)
        try:
            yield supervisor
        finally:
            await supervisor.stop_all(grace_seconds=_LAST_GRACE_SECONDS)


def _ending(part: _Part, exit_code: int) -> str:
    """How a part ended, with its own words if it ended by itself: whoever is killed says nothing about it."""
    words = last_words(part.spec.log) if exit_code > 0 else ""
    return f"{describe_exit(exit_code)}: {words}" if words else describe_exit(exit_code)


def _sentence(part: _Part, reason: str) -> str:
    """Why a part was given up, with the end of its log: the reason is usually there."""
    name, trouble = part.spec.name, f" ({part.trouble})" if part.trouble else ""
    lines = last_lines(part.spec.log, _LAST_LINES)
    return "\n".join([f"{name} {reason}{trouble}; the last lines of {part.spec.log.name}:", *(f"    {line}" for line in lines)])
