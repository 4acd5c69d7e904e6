"""How processes speak: sentences with a time, on stderr, which a supervisor puts into a log."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any


def speak(*, plain: bool = False) -> None:
    """Send what penstock logs to stderr; `plain`: for people, without time and level."""
    style = "%(message)s" if plain else "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=logging.INFO, format=style)
    logging.getLogger("asyncio").setLevel(logging.WARNING)


def run_until_told(work: Coroutine[Any, Any, None], *, loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None) -> None:
    """Run `work` to its end. SIGTERM cancels it, so that what it holds is let go of in order, and the process then says by its exit that it is not done."""

    async def run() -> None:
        task = asyncio.ensure_future(work)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        await task

    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(run())
    except asyncio.CancelledError:
        sys.exit(128 + signal.SIGTERM)
