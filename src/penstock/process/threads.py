"""Threads that may be given up: for calls of environments, tools and agents, which nobody can end from outside."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from penstock.errors import InfraError

T = TypeVar("T")

MOST_AT_ONCE = 64
_lock = threading.Lock()
_num_given_up = 0


def num_given_up() -> int:
    """Calls in this process that still run though nobody waits for them any more."""
    return _num_given_up


def use_threads() -> None:
    """Let `asyncio.to_thread` in the running event loop use such threads: those of Python are few, and one that hangs is lost to all others and keeps the
    process from ending."""
    asyncio.get_running_loop().set_default_executor(Threads())


async def in_thread(function: Callable[..., T], /, *arguments: Any, **named: Any) -> T:
    """As `asyncio.to_thread`, but in such threads, whatever the event loop has."""
    call = partial(contextvars.copy_context().run, function, *arguments, **named)
    result: T = await asyncio.get_running_loop().run_in_executor(_shared, call)
    return result


@dataclass(slots=True, eq=False)
class _Call:
    run: Callable[[], Any]
    future: Future[Any] = field(default_factory=Future)
    is_given_up: bool = False
    is_over: bool = False


class Threads(ThreadPoolExecutor):
    """At most so many calls at once, each in a thread of its own. A call whose future is cancelled gives up its place, however long it goes on; whatever still
    runs ends with the process.

    It is a `ThreadPoolExecutor` because event loops take no other by default; nothing of that is used.
    """

    def __init__(self, most_at_once: int = MOST_AT_ONCE, name: str = "call") -> None:
        super().__init__(max_workers=1)
        self._most_at_once, self._name = most_at_once, name
        self._waiting: deque[_Call] = deque()
        self._num_running = 0

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        """See `Executor`."""
        call = _Call(partial(function, *arguments, **named))
        self._waiting.append(call)
        self._start()
        return call.future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """See `Executor`, but nothing is waited for: it might never end."""
        while cancel_futures and self._waiting:
            self._waiting.popleft().future.cancel()

    def _start(self) -> None:
        """Start the calls that there is a place for."""
        while (call := self._next()) is not None:
            call.future.add_done_callback(partial(self._left, call))
            try:
                threading.Thread(target=_run, args=(call,), name=self._name, daemon=True).start()
            except RuntimeError as error:  # which the call has not raised: it was not made
                with _lock:
                    call.is_over = True
                call.future.set_exception(InfraError(f"the worker has no thread for a call: {error}"))

    def _next(self) -> _Call | None:
        with _lock:
            while self._waiting and self._num_running < self._most_at_once:
                call = self._waiting.popleft()
                if not call.future.cancelled():
                    self._num_running += 1
                    return call
        return None

    def _left(self, call: _Call, future: Future[Any]) -> None:
        """Nobody waits for a call any more: it has ended, or it was cancelled."""
        global _num_given_up
        with _lock:
            self._num_running -= 1
            if not call.is_over and future.cancelled():
                call.is_given_up = True
                _num_given_up += 1
        self._start()


_shared = Threads()


def _run(call: _Call) -> None:
    global _num_given_up
    settle: Callable[[], None]
    try:
        settle = partial(call.future.set_result, call.run())
    except BaseException as error:  # also `sys.exit`: whoever waits for the call decides
        settle = partial(call.future.set_exception, error)
    with _lock:
        call.is_over = True
        _num_given_up -= call.is_given_up
    with contextlib.suppress(InvalidStateError):  # cancelled
        settle()
