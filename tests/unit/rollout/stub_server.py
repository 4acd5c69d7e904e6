"""A server of HTTP for as long as a test needs it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

from aiohttp import web


@contextlib.asynccontextmanager
async def serving(routes: Mapping[str, Callable[[web.Request], Awaitable[web.StreamResponse]]]) -> AsyncIterator[str]:
    """Answers what is posted to each path; gives the URL."""
    app = web.Application()
    for path, answer in routes.items():
        app.router.add_post(path, answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
