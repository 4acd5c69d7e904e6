"""A watch over the event loop of a worker: an environment that blocks it, blocks every episode of the worker and its heartbeat."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import os
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence

from penstock.rollout.running import Running

log = logging.getLogger(__name__)

CHECKS = 10
"""In the time that is allowed. They are counted, not timed, so that a process that was stopped for a moment is not taken for one that is blocked."""
WARN_CHECKS = 3
"""So many in vain are told of: by default that is when the buffer is about to give the episodes to others."""


@contextlib.contextmanager
def ended_if_blocked(block_seconds: float, runnings: Sequence[Running]) -> Iterator[None]:
    """End this process with code 1 if its event loop does not turn for `block_seconds`, after a line of log about who blocks it; a third of that is a warning.

    Nothing softer helps: what blocks a thread cannot be cancelled. To the buffer the worker is then lost as one that was killed is, and its slots go to
    others. Code that also keeps every other Python thread from running (a regular expression without end) is ended after twice the time, with a traceback;
    so is a process that was stopped for that long, whose session is over anyway.
    """
    watch = _Watch(asyncio.get_running_loop(), block_seconds, runnings)
    watch.turned()
    watch.start()
    try:
        yield
    finally:
        watch.stop()


class _Watch(threading.Thread):
    def __init__(self, loop: asyncio.AbstractEventLoop, block_seconds: float, runnings: Sequence[Running]) -> None:
        """To be made in the loop's thread."""
        super().__init__(name="blocking", daemon=True)
        self._loop, self._block_seconds, self._runnings = loop, block_seconds, runnings
        self._loop_thread = threading.get_ident()
        self._has_turned = True
        self._is_over = threading.Event()

    def run(self) -> None:
        missed = 0
        while not self._is_over.wait(self._block_seconds / CHECKS):
            if self._has_turned:
                missed, self._has_turned = 0, False
                with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                    self._loop.call_soon_threadsafe(self.turned)
                continue
            missed += 1
            if missed == WARN_CHECKS:
                log.warning("%s; after %g s the worker ends", self._who_blocks(missed), self._block_seconds)
            if missed >= CHECKS:
                log.error("%s; the worker ends, so that its episodes go to others", self._who_blocks(missed))
                os._exit(1)

    def stop(self) -> None:
        self._is_over.set()
        faulthandler.cancel_dump_traceback_later()
        self.join()

    def turned(self) -> None:
        """Called in the loop's thread."""
        self._has_turned = True
        if not self._is_over.is_set():
            # Needs no Python thread to run. Armed anew each time, it only fires if there is no next time.
            faulthandler.dump_traceback_later(2 * self._block_seconds, exit=True, file=sys.__stderr__ or 2)

    def _who_blocks(self, missed: int) -> str:
        task = asyncio.current_task(self._loop)
        name = "" if task is None else task.get_name()
        now = self._loop.time()
        found = next((episode for running in self._runnings if (episode := running.find(name, now)) is not None), None)
        who = f"{found.waits_for} of episode {name}" if found is not None else f"task {name}"
        frame = sys._current_frames().get(self._loop_thread)
        last = None if frame is None else traceback.extract_stack(frame)[-1]
        where = "" if last is None else f" in {last.name}, {last.filename}:{last.lineno}"
        return f"{who} has blocked the event loop for {missed * self._block_seconds / CHECKS:g} s{where}"
