"""How a generator stands, and one life of it from its start to its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from penstock.buffer.compat.generators.discovery import Found
from penstock.buffer.compat.generators.frames import FrameError, Frames
from penstock.process.child import Child, note
from penstock.process.logs import last_lines
from penstock.process.restarts import describe_exit

log = logging.getLogger(__name__)

_LAST_LINES = 12


class RolloutState(StrEnum):
    """Where a generator is in its life."""

    IDLE = "idle"
    """Found, not started since the buffer was."""
    STARTING = "starting"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorState:
    """A generator, as others may see it."""

    task_type: str
    file: str
    """Its name, without the folder."""
    functions: tuple[str, ...]
    """Of the five, those that it brings."""
    state: RolloutState = RolloutState.IDLE
    pid: int | None = None
    started_at: float | None = None
    """Seconds since 1970."""
    ended_at: float | None = None
    num_skipped: int = 0
    """Instances, counted once for each epoch, that it was told to skip."""
    reason: str | None = None
    """Why it failed."""
    last_lines: tuple[str, ...] = ()
    """The end of its log, if it failed."""


@dataclass(slots=True, eq=False)
class Life:
    """One start of a generator."""

    found: Found
    payload: dict[str, Any]
    log_file: Path
    child: Child
    frames: Frames
    secret: str | None = None
    """What it must not be seen to have said: it may print the URL that it was given."""
    state: RolloutState = RolloutState.STARTING
    started_at: float = field(default_factory=time.time)
    ended_at: float | None = None
    is_stopping: bool = False
    reason: str | None = None
    watcher: asyncio.Task[None] | None = None

    @property
    def is_over(self) -> bool:
        return self.ended_at is not None

    async def watch(self) -> None:
        """Follow the process to its end."""
        hearing = asyncio.create_task(self._hear())
        exit_code = await self.child.wait()
        await hearing
        self.frames.close()
        if self.is_stopping:
            self.state = RolloutState.STOPPED
        elif exit_code == 0:
            self.state = RolloutState.FINISHED
        else:
            self.state = RolloutState.FAILED
            self.reason = self.reason or f"the process ended with {describe_exit(exit_code)}"
        self.ended_at = time.time()
        note(self.log_file, f"{self.state}{f': {self.reason}' if self.reason else ''}")
        log.log(logging.WARNING if self.state is RolloutState.FAILED else logging.INFO, "generator %s has %s", self.found.task_type, self._outcome())

    def _outcome(self) -> str:
        return {RolloutState.FAILED: f"failed: {self.reason}", RolloutState.STOPPED: "been stopped"}.get(self.state, "finished")

    async def _hear(self) -> None:
        with contextlib.suppress(FrameError):
            while True:
                told = await self.frames.receive()
                if "failed" in told:
                    self.reason = without(str(told["failed"]), self.secret)
                else:
                    self.state = RolloutState.RUNNING

    def shown(self) -> GeneratorState:
        has_failed = self.state is RolloutState.FAILED
        return GeneratorState(
            task_type=self.found.task_type,
            file=self.found.path.name,
            functions=tuple(sorted(self.found.hooks)),
            state=self.state,
            pid=None if self.is_over else self.child.id.pid,
            started_at=self.started_at,
            ended_at=self.ended_at,
            num_skipped=len(self.payload["skip_instance_ids"]),
            reason=self.reason if has_failed else None,
            last_lines=tuple(without(line, self.secret) for line in last_lines(self.log_file, _LAST_LINES)) if has_failed else (),
        )


def without(text: str, secret: str | None) -> str:
    """The text, with something in place of the secret."""
    return text.replace(secret, "***") if secret else text
