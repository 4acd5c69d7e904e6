"""Where one can look at runs: a directory on this machine, whose store is only read, or a buffer that answers at a URL. Both tell the same."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from penstock.buffer import api
from penstock.buffer.client import BufferClient
from penstock.buffer.core import Buffer
from penstock.buffer.exporting import export_lines
from penstock.buffer.findings import Finding
from penstock.buffer.selection import select
from penstock.buffer.serving import STORE_FILE
from penstock.buffer.status import ledger_reply
from penstock.buffer.store import SqliteStore
from penstock.buffer.story import Story
from penstock.buffer.telling import tell
from penstock.errors import UnauthorizedError, UnknownError
from penstock.ledger import imbalance
from penstock.process.credentials import TOKEN_VARIABLE, own_token

T = TypeVar("T")
Words = Sequence[tuple[str, str]]
"""What is meant, as (parameter, word): see `buffer.selection.select`."""
_PATIENCE_SECONDS = 3.0
"""A buffer that is about to start, or has too much to do, is asked again for so long: somebody sits and waits."""


class Source(Protocol):
    """Runs to look at. Nothing is changed."""

    def runs(self) -> tuple[str, ...]:
        """Their names."""

    def ledger(self, run: str) -> api.LedgerReply:
        """Where every group and member of a run is."""

    def story(self, run: str, asked: str) -> Story:
        """What became of a group, a member or a rollout. Raises `UnknownError` if nothing has that name."""

    def lines(self, run: str, words: Words) -> Iterator[bytes]:
        """Stored rollouts, a line of JSON each."""


class DirectorySource:
    """The store in a run's directory, or in a buffer's. It may be in use meanwhile."""

    def __init__(self, directory: Path) -> None:
        self._path = store_path(directory)

    def runs(self) -> tuple[str, ...]:
        """See `Source`."""
        with self._opened() as buffer:
            return tuple(buffer.runs())

    def ledger(self, run: str) -> api.LedgerReply:
        """See `Source`."""
        with self._opened() as buffer:
            return ledger_reply(buffer.ledger(run), imbalance(buffer.ledger(run)))

    def story(self, run: str, asked: str) -> Story:
        """See `Source`."""
        with self._opened() as buffer:
            return tell(buffer, run, asked)

    def lines(self, run: str, words: Words) -> Iterator[bytes]:
        """See `Source`."""
        selection = select(**_by_parameter(words))
        with self._opened() as buffer:
            buffer.ledger(run)
            for piece in export_lines(buffer.store, run, selection):
                yield from piece.splitlines()

    @contextmanager
    def _opened(self) -> Iterator[Buffer]:
        store = SqliteStore(self._path, read_only=True)
        try:
            yield Buffer(store, time.time)
        finally:
            store.close()


class UrlSource:
    """A buffer at a URL."""

    def __init__(self, url: str, *, token: str | None = None) -> None:
        self._url, self._token = url, token

    def runs(self) -> tuple[str, ...]:
        """See `Source`."""

        async def ask() -> tuple[str, ...]:
            async with self._client("-") as client:
                return await client.runs()

        try:
            return self._answer(ask())
        except UnknownError as error:
            raise UnknownError(f"{self._url} is not the URL of a buffer: {error}") from None

    def findings(self, run: str) -> tuple[Finding, ...]:
        """What the buffer finds when it checks a run of its own."""

        async def ask() -> tuple[Finding, ...]:
            async with self._client(run) as client:
                return await client.verify()

        return self._answer(ask())

    def ledger(self, run: str) -> api.LedgerReply:
        """See `Source`."""

        async def ask() -> api.LedgerReply:
            async with self._client(run) as client:
                return await client.ledger()

        return self._answer(ask())

    def story(self, run: str, asked: str) -> Story:
        """See `Source`."""

        async def ask() -> Story:
            async with self._client(run) as client:
                return await client.where(asked)

        return self._answer(ask())

    def lines(self, run: str, words: Words) -> Iterator[bytes]:
        """See `Source`."""
        with asyncio.Runner() as runner:
            client = runner.run(self._client(run).__aenter__())
            try:
                lines = client.export(words)
                while (line := runner.run(anext(lines, None))) is not None:
                    yield line
            finally:
                runner.run(client.__aexit__(None, None, None))

    def _client(self, run: str) -> BufferClient:
        return BufferClient(self._url, run, token=self._token, deadline_seconds=_PATIENCE_SECONDS)

    def _answer(self, asking: Coroutine[Any, Any, T]) -> T:
        try:
            return asyncio.run(asking)
        except UnauthorizedError:
            known = "does not know the token that it was sent" if own_token(self._token) else "wants a token"
            raise UnauthorizedError(f"the buffer at {self._url} {known}; it is taken from --token-file, or else from {TOKEN_VARIABLE}") from None


def store_path(directory: Path) -> Path:
    """The store of a run's directory or of a buffer's. Raises `UnknownError` if there is none."""
    for path in (directory / "buffer" / STORE_FILE, directory / STORE_FILE):
        if path.is_file():
            return path
    raise UnknownError(f"{directory} holds no buffer: there is neither buffer/{STORE_FILE} nor {STORE_FILE}")


def _by_parameter(words: Words) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for parameter, word in words:
        found.setdefault(parameter, []).append(word)
    return found
