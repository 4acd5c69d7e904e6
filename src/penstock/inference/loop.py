"""The engine in a thread of its own, so that the server answers while it computes.

Everything that touches the engine runs in its thread, between two steps. What it has to say goes to the event loop in one call per step.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from penstock.errors import InfraError, LimitError, PenstockError
from penstock.inference.engine.core import Engine
from penstock.inference.engine.requests import Choice, Request
from penstock.process.points import reach

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(eq=False)
class Ticket:
    """Requests that were submitted together, and the replies as they come."""

    requests: Sequence[Request]
    is_streamed: bool
    news: asyncio.Queue[Choice | None] = field(default_factory=asyncio.Queue)
    """Replies that ended and, if streamed, those that grew; None if the engine is gone. `Choice.drawn` only grows, so it may be read meanwhile."""

    async def next(self) -> Choice:
        """The next reply that ended or grew. Raises `InfraError` if the engine is gone."""
        choice = await self.news.get()
        if choice is None:
            raise InfraError("the engine has stopped")
        return choice


class EngineLoop:
    """Owns the thread. `start` it in the event loop that its tickets live in; `close` it there too."""

    def __init__(self, engine: Engine, *, on_failure: Callable[[], None]) -> None:
        self.engine = engine
        self._on_failure = on_failure
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._wake = threading.Condition()
        self._inbox: deque[Callable[[], object]] = deque()
        self._num_arriving = 0
        self._tickets: dict[Request, Ticket] = {}
        self._num_open: dict[Request, int] = {}
        # Kept on the side of the event loop, so that whoever waits is told even if the thread never saw what they asked.
        self._waiting: weakref.WeakSet[Ticket | asyncio.Future[Any]] = weakref.WeakSet()
        self._is_closed = False
        self.has_failed = False
        """The thread has ended by an error of ours."""
        self._events: asyncio.AbstractEventLoop | None = None

    @property
    def is_alive(self) -> bool:
        """Whether requests are being served."""
        return self._thread.is_alive() and not self._is_closed

    def start(self) -> None:
        """Start the thread."""
        self._events = asyncio.get_running_loop()
        self._thread.start()

    async def close(self) -> None:
        """Stop after the step under way and wait for the thread. Open tickets are told."""
        if self.is_alive:
            self._put(self._close)
        await asyncio.to_thread(self._thread.join)

    def submit(self, requests: Sequence[Request], *, is_streamed: bool) -> Ticket:
        """Queue requests. Raises `InvalidError` for one that can never be served, `LimitError` if too many wait already."""
        for request in requests:
            self.engine.check(request)
        ticket = Ticket(requests, is_streamed)
        self._waiting.add(ticket)
        with self._wake:
            num_waiting = self.engine.num_queued + self._num_arriving
            if num_waiting + len(requests) > self.engine.limits.max_queued + self._num_free():
                raise LimitError(f"{num_waiting} requests are waiting already", retry_after_seconds=1.0)
            self._num_arriving += len(requests)
        self._put(lambda: self._submit(ticket))
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """End the requests of `ticket`; nobody waits for them any more. Does nothing for those that have ended."""
        if self.is_alive:
            self._put(lambda: self._abort_quietly(ticket))

    async def abort(self, ids: frozenset[str] | None) -> int:
        """End the requests of these ids (None: all); their tickets get what was sampled so far. Returns how many replies that were."""
        return await self.call(lambda: self._abort(lambda request: ids is None or request.id in ids))

    def abort_after(self, seconds: float) -> None:
        """End whatever is still under way after that time. May be called by a signal handler."""
        assert self._events is not None
        self._events.call_soon_threadsafe(self._events.call_later, seconds, self._abort_rest)

    def _abort_rest(self) -> None:
        if self.is_alive:
            self._put(lambda: self._abort(lambda _: True))

    async def call(self, function: Callable[[], T]) -> T:
        """Run `function` in the engine's thread between two steps. An error that is not ours ends the engine: it may have been left half changed."""
        events = asyncio.get_running_loop()
        future: asyncio.Future[T] = events.create_future()
        self._waiting.add(future)

        def run() -> None:
            try:
                result = function()
            except PenstockError as error:
                events.call_soon_threadsafe(_settle, future, None, error)
            else:
                events.call_soon_threadsafe(_settle, future, result, None)

        self._put(run)
        return await future

    def _num_free(self) -> int:
        """Requests that will not have to wait: the queue's limit is about those that do."""
        return max(0, self.engine.limits.max_running - self.engine.num_running)

    def _put(self, command: Callable[[], object]) -> None:
        with self._wake:
            if self._is_closed:
                raise InfraError("the engine has stopped")
            self._inbox.append(command)
            self._wake.notify()

    def _run(self) -> None:
        try:
            while not self._is_closed:
                self._obey()
                if self.engine.has_work and not self._is_closed:
                    self._tell(self.engine.step())
                    if self.engine.num_running:
                        reach("server.mid_reply")
        except Exception:
            log.exception("the engine failed; the server stops")
            self.has_failed = True
            self._post(self._on_failure)
        finally:
            with self._wake:
                self._is_closed = True
            self._post(self._tell_all_gone)

    def _obey(self) -> None:
        """Do what was asked; wait for something to do if there is nothing."""
        with self._wake:
            while not self._inbox and not self.engine.has_work:
                self._wake.wait()
            commands = list(self._inbox)
            self._inbox.clear()
        for command in commands:
            command()

    def _close(self) -> None:
        self._is_closed = True

    def _submit(self, ticket: Ticket) -> None:
        for request in ticket.requests:
            self._tickets[request] = ticket
            self._num_open[request] = request.num_choices
            self.engine.submit(request)
        with self._wake:
            self._num_arriving -= len(ticket.requests)

    def _abort_quietly(self, ticket: Ticket) -> None:
        # Usually the requests have ended: then there is nothing to look for among the others.
        if any(request in self._tickets for request in ticket.requests):
            self._abort(lambda request: request in ticket.requests)

    def _abort(self, is_meant: Callable[[Request], bool]) -> int:
        aborted = self.engine.abort(is_meant)
        self._tell(aborted)
        return len(aborted)

    def _tell(self, choices: Sequence[Choice]) -> None:
        news = []
        for choice in choices:
            ticket = self._tickets[choice.request]
            if choice.finish is not None or ticket.is_streamed:
                news.append((ticket, choice))
            if choice.finish is not None:
                self._close_one(choice.request)
        if news:
            self._post(self._deliver, news)

    def _deliver(self, news: Sequence[tuple[Ticket, Choice]]) -> None:
        for ticket, choice in news:
            ticket.news.put_nowait(choice)

    def _close_one(self, request: Request) -> None:
        self._num_open[request] -= 1
        if self._num_open[request] == 0:
            del self._tickets[request], self._num_open[request]

    def _tell_all_gone(self) -> None:
        for waiting in list(self._waiting):
            if isinstance(waiting, Ticket):
                waiting.news.put_nowait(None)
            else:
                _settle(waiting, None, InfraError("the engine has stopped"))

    def _post(self, function: Callable[..., Any], *arguments: Any) -> None:
        assert self._events is not None
        # The event loop may be gone before the thread when the process ends: then nobody is left to be told.
        if not self._events.is_closed():
            self._events.call_soon_threadsafe(function, *arguments)


def _settle(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
