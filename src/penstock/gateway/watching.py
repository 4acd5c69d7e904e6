"""Whether somebody still listens."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

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
