"""The waits of one episode, one after another: each is shown while it lasts, ended when its time is over, and added up afterwards."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from types import TracebackType
from typing import Self

from penstock.clock import Alarm, Clock
from penstock.errors import InfraError
from penstock.rollout.running import Running, Wait


class Waits:
    """Belongs to one episode, which waits for one thing at a time:

        with waits("env", "env.step", 60.0, steps=3):
            observation = await env.step(reply)

    A block that takes longer than it may is cancelled, and `TimeoutError` comes out of it; `expired` tells it from one that was raised inside. A cancellation
    that nobody asked of the episode (of a task of the environment's own, say) comes out as `InfraError`. One object
    does for all blocks of an episode what nested context managers would do for each: an agent's turn has two of them, and there are thousands a second.
    """

    def __init__(self, uid: str, running: Running, clock: Clock) -> None:
        self._uid, self._running, self._clock = uid, running, clock
        self._shown = Wait()
        self._outer: Wait | None = None
        self._cause = ""
        self._alarm: Alarm | None = None
        self._task: asyncio.Task[object] | None = None
        self._num_cancelled = 0
        self._has_rung = False
        self.seconds: defaultdict[str, float] = defaultdict(float)
        """Waited so far, by cause."""
        self.expired = False
        """Whether the last block ran out of time."""

    def __call__(self, cause: str, waits_for: str, most_seconds: float, steps: int) -> Self:
        """The next block: what it is added up under, what is shown of it, and how long it may take."""
        self._cause, shown = cause, self._shown
        shown.waits_for, shown.steps, shown.since = waits_for, steps, self._clock.monotonic()
        if self._alarm is None:
            self._alarm = Alarm(self._ring)
        self._alarm.set(most_seconds)
        return self

    def __enter__(self) -> None:
        self._outer = self._running.show(self._uid, self._shown)
        if self._task is None:
            self._task = asyncio.current_task()
        assert self._task is not None, "an episode runs in a task, and in one only"
        self._num_cancelled, self._has_rung = self._task.cancelling(), False

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._alarm is not None
        self._alarm.clear()
        self._running.show_again(self._uid, self._outer)
        self.seconds[self._cause] += self._clock.monotonic() - self._shown.since
        self.expired = self._has_rung
        assert self._task is not None
        num_cancelled = self._task.uncancel() if self._has_rung else self._task.cancelling()
        if kind is asyncio.CancelledError and num_cancelled <= self._num_cancelled:
            if self._has_rung:
                raise TimeoutError from error
            # Passed on, it would end the episode's task without a word, and its slot would stay taken.
            raise InfraError("what it waited for was cancelled") from error

    def close(self) -> None:
        """The episode is over."""
        if self._alarm is not None:
            self._alarm.close()

    def _ring(self) -> None:
        assert self._task is not None
        self._has_rung = True
        self._task.cancel()
