"""Questions to a server over HTTP that are asked again until there is an answer, or no time is left.

Sampling changes nothing on a server, so every question may be repeated: after a lost connection, an answer that is no JSON, 408, 409, 425, 429 and any 5xx,
after the wait that the server names or a growing one. Other refusals are raised at once.
"""

from __future__ import annotations

import email.utils
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

import aiohttp
import msgspec

from penstock.clock import Clock, SystemClock
from penstock.errors import InfraError, InvalidError
from penstock.types import Json

FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.1, 5.0
_AGAIN = frozenset({408, 409, 425, 429})
_LONGEST_TROUBLE = 200

T = TypeVar("T")


class Asker:
    """Talks to one server. Use it as an async context manager, from one event loop."""

    def __init__(self, base_url: str, *, api_key: str | None = None, clock: Clock | None = None) -> None:
        self._base_url = base_url.rstrip("/")
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {api_key}"} if api_key else {})
        self._clock = clock or SystemClock()
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        # How many requests are under way is for the server to bound.
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def ask(self, path: str, body: Mapping[str, Json], *, deadline_seconds: float, read: Callable[[Json], T]) -> T:
        """What `read` makes of the answer. An `InfraError` of `read` is an answer that is no use, and the question is asked again.

        Raises `InvalidError` if the server refuses the question, `InfraError` if there is no answer by the deadline.
        """
        start = self._clock.monotonic()
        deadline = start + deadline_seconds
        wait_seconds = FIRST_WAIT_SECONDS
        while True:
            named_seconds = 0.0
            try:
                status, headers, answer = await self._send(path, body, deadline - self._clock.monotonic())
                if status == 200:
                    return read(msgspec.json.decode(answer))
                trouble = f"status {status}: {answer[:_LONGEST_TROUBLE].decode('utf-8', 'replace')}"
                if status not in _AGAIN and status < 500:
                    raise InvalidError(f"{path} refused the request with {trouble}")
                named_seconds = retry_after_seconds(headers.get("Retry-After"), self._clock.now())
            except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError, UnicodeDecodeError, InfraError) as error:
                trouble = f"{type(error).__name__}: {error}"
            wait_seconds = max(wait_seconds, named_seconds)
            now = self._clock.monotonic()
            if now + wait_seconds >= deadline:
                raise InfraError(f"{path} on {self._base_url} has no answer after {now - start:.1f} s: {trouble}")
            await self._clock.sleep(wait_seconds)
            wait_seconds = min(2 * wait_seconds, LONGEST_WAIT_SECONDS)

    async def _send(self, path: str, body: Mapping[str, Any], seconds: float) -> tuple[int, Mapping[str, str], bytes]:
        assert self._session is not None, "use it as an async context manager"
        timeout = aiohttp.ClientTimeout(total=max(0.001, seconds))
        async with self._session.post(self._base_url + path, data=msgspec.json.encode(body), headers=self._headers, timeout=timeout) as answer:
            return answer.status, answer.headers, await answer.read()


def retry_after_seconds(value: str | None, now: float) -> float:
    """What the header `Retry-After` asks for, in either of its forms; 0 if it says nothing that can be understood.

    >>> retry_after_seconds("2", now=0.0), retry_after_seconds("Thu, 01 Jan 1970 00:00:05 GMT", now=2.0), retry_after_seconds("soon", now=0.0)
    (2.0, 3.0, 0.0)
    """
    if value is None:
        return 0.0
    if value.strip().isdecimal():
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - now)
    except (ValueError, TypeError):
        return 0.0
