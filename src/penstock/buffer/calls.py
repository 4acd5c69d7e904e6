"""Requests to a buffer, sent until they are answered: what all verbs of its client have in common."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote

import aiohttp
from yarl import URL

from penstock.buffer import api
from penstock.errors import (
    ConflictError,
    CorruptError,
    FencedError,
    ForbiddenError,
    InexactError,
    InputError,
    InvalidError,
    LimitError,
    MalformedError,
    MediaTypeError,
    MethodError,
    PenstockError,
    RetiredError,
    StoreError,
    UnauthorizedError,
    UnknownError,
)
from penstock.process.credentials import authorization, own_token
from penstock.wire import read_body, write_body
from penstock.wire.connections import Wire

T = TypeVar("T")

_ERRORS: dict[str, type[PenstockError]] = {
    error.code: error
    for error in (
        MalformedError,
        InvalidError,
        UnauthorizedError,
        ForbiddenError,
        UnknownError,
        MethodError,
        ConflictError,
        FencedError,
        MediaTypeError,
        LimitError,
        InputError,
        RetiredError,
        InexactError,
        CorruptError,
    )
}
_AGAIN = (408, 429)
"""Refusals that say nothing about the request."""
_NEVER = (413, 431)
"""Refusals that trying again cannot change."""
_PAUSES_SECONDS = (0.05, 0.1, 0.2, 0.5, 1.0)
POLL_SECONDS = 20.0
_ANSWER_SECONDS = POLL_SECONDS + 20.0
"""A server that has said nothing for so long is asked again."""


class Calls:
    """HTTP to the buffer at `url`, for one run: paths are below it unless they begin with /v1/. See `BufferClient` for what is tried again."""

    def __init__(self, url: str, run: str, *, token: str | None, deadline_seconds: float) -> None:
        self._url = url
        self._deadline_seconds = deadline_seconds
        self._headers = authorization(token)
        self._root = f"/v1/runs/{quote(run)}"
        self._session: aiohttp.ClientSession | None = None
        self._wire = Wire(url, token=own_token(token)) if url.startswith("http://") else None
        """For small requests to a server of our own: a full client costs several times as much."""

    def open(self) -> None:
        """To be called on the event loop that makes the calls."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5.0, sock_read=_ANSWER_SECONDS)
        self._session = aiohttp.ClientSession(
            headers=self._headers, timeout=timeout, connector=aiohttp.TCPConnector(limit=0), cookie_jar=aiohttp.DummyCookieJar()
        )

    async def close(self) -> None:
        """End all connections."""
        if self._wire is not None:
            self._wire.close()
        if self._session is not None:
            await self._session.close()

    async def get(self, path: str, answer: type[T]) -> T:
        """What the buffer has under a path."""
        return read_body(await self.call("GET", path), answer)

    async def post(self, path: str, body: Any, answer: type[T]) -> T:
        """What the buffer answers to a noun."""
        return read_body(await self.call("POST", path, write_body(body)), answer)

    async def call(self, method: str, path: str, body: bytes = b"", content_type: str = "application/json", *, accept: str = "*/*") -> bytes:
        """Bytes for bytes."""
        headers = {"Content-Type": content_type, "Accept": accept}
        deadline = time.monotonic() + self._deadline_seconds
        attempt = 0
        while True:
            try:
                return await self._attempt(method, path, body, headers)
            except (aiohttp.ClientError, OSError, StoreError, LimitError) as error:
                if isinstance(error, CorruptError) or (isinstance(error, LimitError) and error.http_status in _NEVER):
                    raise
                pause = _PAUSES_SECONDS[min(attempt, len(_PAUSES_SECONDS) - 1)] * random.uniform(0.5, 1.0)
                if time.monotonic() + pause > deadline:
                    what = f"{method} {path if path.startswith('/v1/') else self._root + path}"
                    raise StoreError(f"the buffer at {self._url} did not take {what} within {self._deadline_seconds:g} s ({_reason(error)})") from None
            attempt += 1
            await asyncio.sleep(pause)

    async def _attempt(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> bytes:
        session = self._opened
        path = path if path.startswith("/v1/") else self._root + path
        if self._wire is not None and method == "POST":
            answered = await self._wire.post(path, body, headers["Content-Type"], seconds=_ANSWER_SECONDS)
            status, answer = answered.status, answered.body
        else:
            async with session.request(method, URL(self._url + path, encoded=True), data=body or None, headers=headers) as response:
                status, answer = response.status, await response.read()
        if status < 300 or (status < 500 and status not in _AGAIN and b'"rollouts":[' in answer):
            # A write of which every rollout was refused has answers all the same.
            return answer
        raise _error_of(status, answer)

    async def once(self, path: str, answer: type[T]) -> T:
        """As `get`, for what takes as long as it takes: asked once, without a deadline."""
        try:
            async with self._opened.get(self._url + self._root + path, timeout=aiohttp.ClientTimeout(total=None, sock_connect=5.0)) as response:
                found = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise StoreError(f"the buffer at {self._url} did not answer: {error}") from None
        if response.status >= 300:
            raise _error_of(response.status, found)
        return read_body(found, answer)

    async def lines(self, path: str, query: Sequence[tuple[str, str]]) -> AsyncIterator[bytes]:
        """The lines of a stream as they arrive. One that breaks off raises `StoreError`."""
        try:
            async with self._opened.get(self._url + self._root + path, params=list(query)) as response:
                if response.status >= 300:
                    raise _error_of(response.status, await response.read())
                async for line in _lines(response.content):
                    yield line
        except (aiohttp.ClientError, TimeoutError) as error:
            raise StoreError(f"the export broke off: {type(error).__name__}: {error}") from None

    @property
    def _opened(self) -> aiohttp.ClientSession:
        assert self._session is not None, "use the client as a context: async with BufferClient(...)"
        return self._session


@dataclass(frozen=True, slots=True, kw_only=True)
class _ErrorReply:
    """Reply of anything that was refused."""

    error: dict[str, str]
    rollouts: tuple[api.Written, ...] = ()
    """Answers of a write of which nothing was taken."""


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Lines of any length. (The reader's own have a limit.)"""
    rest = b""
    async for piece in content.iter_chunked(1 << 18):
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line
    if rest:
        yield rest


def _reason(error: Exception) -> str:
    if isinstance(error, (aiohttp.ClientConnectorError, ConnectionRefusedError)):
        return "nobody answers there"
    return str(error) if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}"


def _error_of(status: int, answer: bytes) -> PenstockError:
    """The error that the service raised, as far as its reply tells."""
    try:
        found = read_body(answer, _ErrorReply).error
    except InputError:
        return StoreError(f"HTTP {status} in a form that is not the buffer's: {answer[:80]!r}")
    if found["code"] == LimitError.code:
        return LimitError(found["message"], http_status=status)
    return _ERRORS.get(found["code"], StoreError)(found["message"])
