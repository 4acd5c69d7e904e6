"""Where the events of sessions are kept before anybody is told: in the buffer, or, for sessions that end with their process, nowhere.

Episodes of the buffer's journal are appended to by index, and the buffer looks at what is there of one; so a long log is cut into episodes of bounded length.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Protocol

from penstock.buffer.client import BufferClient
from penstock.gateway.events import Event
from penstock.wire import decode_msgpack, encode_msgpack, join_items
from penstock.wire.connections import Wire

ENTRIES_PER_EPISODE = 32
WIRE_SECONDS = 10.0


class Journal(Protocol):
    """Keeps the events of sessions."""

    async def append(self, session: str, index: int, event: Event) -> None:
        """Keep an event, durably. The same again is fine; `ConflictError` if another one is there: somebody else serves the session."""

    async def load(self, session: str) -> list[Event]:
        """All events of a session; none if nobody knows it."""

    async def note(self, note: Note) -> None:
        """Keep a fact about the gateway itself."""

    async def notes(self) -> dict[str, Note]:
        """Sessions that were noted as open and not as closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A session was opened or has ended."""

    session: str
    key: str = ""
    """By which its client calls it."""
    group_id: str = ""
    member: int = 0
    """The slot that it holds."""
    deadline_at: float = 0.0
    is_open: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class _Page:
    """One entry of the list of sessions: a note, or, as the first of an episode, all that is open then."""

    notes: tuple[Note, ...]


class Forgetful:
    """A `Journal` for sessions whose client ends with this process."""

    async def append(self, session: str, index: int, event: Event) -> None:
        """See `Journal`."""

    async def load(self, session: str) -> list[Event]:
        """See `Journal`."""
        return []

    async def note(self, note: Note) -> None:
        """See `Journal`."""

    async def notes(self) -> dict[str, Note]:
        """See `Journal`."""
        return {}


class BufferJournal:
    """In the journal of a run. `name` is the gateway's: no two that run at once may have the same."""

    def __init__(self, client: BufferClient, name: str, wire: Wire | None = None) -> None:
        """`wire` leads to the same buffer, and is cheaper."""
        self._client, self._name, self._wire = client, name, wire
        self._open: dict[str, Note] = {}
        self._next = 0
        """Number of the next entry in the list of sessions."""
        self._writing = asyncio.Lock()

    async def append(self, session: str, index: int, event: Event) -> None:
        """See `Journal`."""
        # What a reply holds was looked at when the engine gave it; the client's messages are texts and JSON, which the encoder itself refuses if they are not.
        await self._append(f"session.{session}", index, encode_msgpack(event, checked=event.replied is None))

    async def load(self, session: str) -> list[Event]:
        """See `Journal`."""
        events: list[Event] = []
        while True:
            page = await self._client.journal(f"gateway.session.{session}.{len(events) // ENTRIES_PER_EPISODE}")
            events += [decode_msgpack(body, Event) for body in page]
            if len(page) < ENTRIES_PER_EPISODE:
                return events

    async def note(self, note: Note) -> None:
        """See `Journal`."""
        async with self._writing:
            if self._next % ENTRIES_PER_EPISODE == 0:
                # Whoever comes later reads the newest episode only.
                await self._write(_Page(notes=tuple(self._open.values())))
            await self._write(_Page(notes=(note,)))
            self._apply(note)

    async def notes(self) -> dict[str, Note]:
        """See `Journal`."""
        last = await self._last_episode()
        entries = [] if last is None else await self._client.journal(self._list(last))
        for body in entries:
            for note in decode_msgpack(body, _Page).notes:
                self._apply(note)
        self._next = 0 if last is None else last * ENTRIES_PER_EPISODE + len(entries)
        return dict(self._open)

    def _apply(self, note: Note) -> None:
        if note.is_open:
            self._open[note.session] = note
        else:
            self._open.pop(note.session, None)

    async def _last_episode(self) -> int | None:
        """The newest episode of the list, found by doubling and halving: there may be many."""
        if not await self._client.journal(self._list(0)):
            return None
        low, high = 0, 1
        while await self._client.journal(self._list(high)):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if await self._client.journal(self._list(middle)) else (low, middle)
        return low

    def _list(self, episode: int) -> str:
        return f"gateway.list.{self._name}.{episode}"

    async def _write(self, page: _Page) -> None:
        await self._append(f"list.{self._name}", self._next, encode_msgpack(page))
        self._next += 1

    async def _append(self, log: str, index: int, body: bytes) -> None:
        episode, place = divmod(index, ENTRIES_PER_EPISODE)
        name = f"gateway.{log}.{episode}"
        if self._wire is not None:
            path = f"/v1/runs/{self._client.run}/journal/{name}?index={place}"
            # Whatever goes wrong here is left to the client, which knows what may be tried again: the same entry twice is one.
            with contextlib.suppress(OSError):
                answered = await self._wire.post(path, join_items([body]), "application/msgpack", seconds=WIRE_SECONDS)
                if answered.status == 200:
                    return
        await self._client.append_journal(name, place, [body])
