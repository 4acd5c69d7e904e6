"""Whether somebody still listens."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from starlette.types import Receive


@contextlib.asynccontextmanager
async def watched(receive: Receive) -> AsyncIterator[asyncio.Event]:
    """An event that is set when the client closes its connection. The body must have been read."""
    gone = asyncio.Event()

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        gone.set()

    watching = asyncio.create_task(watch())
    try:
        yield gone
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
