"""The wait for a server, before anything is claimed: a slot that is claimed without one only uses up a try."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import aiohttp

from penstock.clock import Clock
from penstock.errors import ProcessError

log = logging.getLogger(__name__)

DEADLINE_SECONDS = 120.0
_ANSWER_SECONDS, _PAUSE_SECONDS = 5.0, 0.5


async def one_awake(urls: Sequence[str], clock: Clock, deadline_seconds: float = DEADLINE_SECONDS) -> None:
    """Return once any of the servers answers anything. Raises `ProcessError` if none does by the deadline."""
    deadline, was_told = clock.monotonic() + deadline_seconds, False
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_ANSWER_SECONDS)) as http:
        while True:
            troubles = await asyncio.gather(*(_trouble(http, url) for url in urls))
            if "" in troubles:
                return
            sentence = f"no inference server answers: {'; '.join(f'{url} ({trouble})' for url, trouble in zip(urls, troubles, strict=True))}"
            if clock.monotonic() >= deadline:
                raise ProcessError(f"{sentence}; that was so for {deadline_seconds:g} s")
            if not was_told:
                log.warning("%s; nothing is claimed before one does", sentence)
                was_told = True
            await clock.sleep(_PAUSE_SECONDS)


async def _trouble(http: aiohttp.ClientSession, url: str) -> str:
    """Why a server does not answer; empty if it does. Which answer it gives is for those to judge who have a question."""
    try:
        async with http.get(f"{url.rstrip('/')}/livez"):
            return ""
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        return str(error) or type(error).__name__
