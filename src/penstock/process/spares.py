"""A spare: a process that has loaded what takes long and waits to be told what to do, so that a killed part is back at once."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Sequence

from penstock.clock import Clock
from penstock.process.child import Child, ChildSpec, note, start_child

log = logging.getLogger(__name__)


class Spare:
    """The spare of one part. `make` and `take` are called by its keeper only."""

    def __init__(self, spec: ChildSpec, clock: Clock) -> None:
        self._spec = spec
        self._clock = clock
        self._waiting: Child | None = None

    @property
    def waiting(self) -> Child | None:
        """The process that waits, if one does."""
        return self._waiting if self._waiting is not None and self._waiting.exit_code is None else None

    async def make(self) -> None:
        """See to it that one waits, after the rush of a start. Does nothing for a part without spares."""
        if not self._spec.spare:
            return
        await self._clock.sleep(self._spec.spare_delay_seconds)
        if self.waiting is None:
            words = (*self._spec.program, *self._spec.spare)
            self._waiting = await start_child(words, log=self._spec.log, environment=self._spec.environment, with_pipe=True)

    async def take(self, arguments: Sequence[str]) -> Child | None:
        """Put the waiting process to work; None if there is none that listens."""
        child, self._waiting = self.waiting, None
        if child is None:
            return None
        try:
            await child.tell(json.dumps(list(arguments)).encode() + b"\n")
        except OSError:
            log.warning("the spare of %s was gone", self._spec.name)
            child.kill()
            await child.wait()
            return None
        note(self._spec.log, f"the spare takes over: {' '.join(arguments)}")
        return child

    async def stop(self) -> None:
        """End the waiting process."""
        child, self._waiting = self.waiting, None
        if child is not None:
            child.kill()
            with contextlib.suppress(OSError):
                await child.wait()
