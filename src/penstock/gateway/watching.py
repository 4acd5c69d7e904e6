"""Whether somebody still listens."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from starlette.types import Receive


class Gone:
    """Says that the client has left, and calls whoever wants to know at once. (An event would need a task that waits for it, in every turn.)"""

    def __init__(self) -> None:
        self._is_set = False
        self._call: Callable[[], None] | None = None

    def is_set(self) -> bool:
        """Whether it has."""
        return self._is_set

    def set(self) -> None:
        """It has."""
        if not self._is_set:
            self._is_set = True
            if self._call is not None:
                self._call()

    def then(self, call: Callable[[], None] | None) -> None:
        """Call this when it leaves, or now if it has; None: call nobody any more."""
        self._call = call
        if self._is_set and call is not None:
            call()


class BreakingOff:
    """Ends what the task that makes this waits for, once it has begun: by `ask`ing whoever works at it, or, if that takes too long, by giving it up.

    In place of a scope with a timeout, which costs every turn what hardly one of them needs.
    """

    __slots__ = ("_ask", "_asking", "_has_given_up", "_seconds", "_task", "_timer")

    def __init__(self, ask: Callable[[], Coroutine[Any, Any, None]], *, seconds: float) -> None:
        self._ask, self._seconds = ask, seconds
        self._task = asyncio.current_task()
        self._asking: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._has_given_up = False

    def begin(self) -> None:
        """Ask, and wait no longer than for `seconds`."""
        self._asking = asyncio.create_task(self._ask())
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._give_up)

    def has_given_up(self) -> bool:
        """Whether a cancellation that has just arrived is nobody's but ours."""
        assert self._task is not None
        return self._has_given_up and self._task.uncancel() == 0

    async def end(self) -> None:
        """The task waits no more."""
        if self._timer is not None and self._asking is not None:
            self._timer.cancel()
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    def _give_up(self) -> None:
        assert self._task is not None
        self._has_given_up = True
        self._task.cancel()


@contextlib.asynccontextmanager
async def watched(receive: Receive) -> AsyncIterator[Gone]:
    """Watch the connection of a client while the block runs. The body must have been read."""
    gone = Gone()

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        gone.set()

    watching = asyncio.create_task(watch())
    try:
        yield gone
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
