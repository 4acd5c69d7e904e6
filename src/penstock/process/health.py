"""Asks a child over HTTP how it is."""

from __future__ import annotations

import aiohttp

from penstock.clock import Clock
from penstock.process.credentials import authorization

READY_POLL_SECONDS = 0.1
LIVE_POLL_SECONDS = 2.0
LIVE_TIMEOUT_SECONDS = 10.0
LIVE_FAILURES = 3
"""So many unanswered questions in a row, and a child counts as hung. A busy machine must not be taken for a hung child: this is half a minute."""


class Health:
    """Questions to children. Use it as an async context manager."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Health:
        self._session = aiohttp.ClientSession(headers=authorization())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def ready(self, url: str, within_seconds: float) -> bool:
        """Wait until `/readyz` answers 200; False if it has not within the time."""
        deadline = self._clock.monotonic() + within_seconds
        while self._clock.monotonic() < deadline:
            if await self._answers(f"{url}/readyz", LIVE_TIMEOUT_SECONDS):
                return True
            await self._clock.sleep(READY_POLL_SECONDS)
        return False

    async def hung(self, url: str) -> None:
        """Return when `/livez` has stopped answering."""
        failures = 0
        while failures < LIVE_FAILURES:
            await self._clock.sleep(LIVE_POLL_SECONDS)
            failures = 0 if await self._answers(f"{url}/livez", LIVE_TIMEOUT_SECONDS) else failures + 1

    async def _answers(self, url: str, seconds: float) -> bool:
        assert self._session is not None, "use Health as an async context manager"
        try:
            async with self._session.get(url, timeout=aiohttp.ClientTimeout(total=seconds)) as answer:
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False
