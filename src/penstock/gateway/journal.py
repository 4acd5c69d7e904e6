"""Where the events of sessions are kept before anybody is told: in the buffer, or, for sessions that end with their process, nowhere.

Episodes of the buffer's journal are appended to by index, and the buffer looks at what is there of one; so a long log is cut into episodes of bounded length.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.buffer.client import BufferClient
from penstock.errors import InputError, PenstockError
from penstock.gateway.events import Event
from penstock.types.frozen import quickly_made
from penstock.wire import decode_msgpack, encode_msgpack

ENTRIES_PER_EPISODE = 32
MOST_TOGETHER = 64
"""Appends that go into one request."""


class Journal(Protocol):
    """Keeps the events of sessions."""

    async def append(self, session: str, index: int, events: Sequence[Event], note: Note | None = None) -> None:
        """Keep events from `index` on, and what they mean for the list of sessions, durably and all at once.

        The same again is fine; `ConflictError` if others are there: somebody else serves the session.
        """

    async def load(self, session: str) -> list[Event]:
        """All events of a session; none if nobody knows it."""

    async def note(self, note: Note) -> None:
        """Keep a fact about the gateway itself."""

    async def notes(self) -> dict[str, Note]:
        """Sessions that were noted as open and not as closed."""


@quickly_made
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


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class _Page:
    """One entry of the list of sessions: a note, or, as the first of an episode, all that is open then."""

    notes: tuple[Note, ...]


class Forgetful:
    """A `Journal` for sessions whose client ends with this process."""

    async def append(self, session: str, index: int, events: Sequence[Event], note: Note | None = None) -> None:
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
    """In the journal of a run. `name` is the gateway's: no two that run at once may have the same.

    What is to be kept while an append is under way goes together into the next one: the buffer commits it as one, and a turn costs a share of a request.
    """

    def __init__(self, client: BufferClient, name: str) -> None:
        self._client, self._name = client, name
        self._open: dict[str, Note] = {}
        self._next = 0
        """Number of the next entry in the list of sessions."""
        self._writing = asyncio.Lock()
        self._queue: deque[_Waiting] = deque()
        self._sending: asyncio.Task[None] | None = None

    async def append(self, session: str, index: int, events: Sequence[Event], note: Note | None = None) -> None:
        """See `Journal`."""
        # What a reply holds was looked at when the engine gave it; the client's messages are texts and JSON, which the encoder itself refuses if they are not.
        bodies = [encode_msgpack(event, checked=event.replied is None) for event in events]
        entries = _entries(f"session.{session}", index, bodies)
        await (self._kept(entries) if note is None else self._noted(note, entries))

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
        await self._noted(note, [])

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

    async def _noted(self, note: Note, entries: list[_Entry]) -> None:
        """Keep a note and what belongs to it."""
        async with self._writing:
            # Whoever comes later reads the newest episode only.
            pages = [_Page(notes=tuple(self._open.values()))] if self._next % ENTRIES_PER_EPISODE == 0 else []
            listed = _entries(f"list.{self._name}", self._next, [encode_msgpack(page) for page in (*pages, _Page(notes=(note,)))])
            await self._kept(listed + entries)
            self._next += len(listed)
            self._apply(note)

    async def _kept(self, entries: list[_Entry]) -> None:
        """Have entries sent with the next append."""
        waiting = _Waiting(entries=entries, done=asyncio.get_running_loop().create_future())
        self._queue.append(waiting)
        if self._sending is None:
            self._sending = asyncio.create_task(self._send())
        await waiting.done

    async def _send(self) -> None:
        """Send what waits, until nothing does.

        takes: entries that somebody waits for     waits for: the buffer, until its client gives up
        gives: them back as kept, or why not       ends: when the queue is empty
        """
        try:
            while self._queue:
                await self._send_some([self._queue.popleft() for _ in range(min(len(self._queue), MOST_TOGETHER))])
        finally:
            self._sending = None

    async def _send_some(self, together: list[_Waiting]) -> None:
        try:
            await self._client.append_journals([entry for waiting in together for entry in waiting.entries])
        except InputError as error:
            if len(together) == 1:
                together[0].fail(error)
                return
            # One of them is wrong: each is told its own. What was taken before is taken again.
            for waiting in together:
                await self._send_some([waiting])
            return
        except PenstockError as error:
            for waiting in together:
                waiting.fail(error)
            return
        for waiting in together:
            if not waiting.done.done():
                waiting.done.set_result(None)


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Waiting:
    """Entries, and who waits for them."""

    entries: list[_Entry]
    done: asyncio.Future[None]

    def fail(self, error: PenstockError) -> None:
        if not self.done.done():
            self.done.set_exception(error)


_Entry = tuple[str, int, bytes]
"""Episode, index, body."""


def _entries(log: str, first: int, bodies: Sequence[bytes]) -> list[_Entry]:
    """Entries of a long log, from number `first` on, in the episodes that they belong to."""
    numbered = [(divmod(first + place, ENTRIES_PER_EPISODE), body) for place, body in enumerate(bodies)]
    return [(f"gateway.{log}.{episode}", index, body) for (episode, index), body in numbered]
