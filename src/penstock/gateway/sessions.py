"""All sessions of a gateway: opening them, finding them again after a restart, ending them, and ending those that nobody ends."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator

from penstock.errors import ConflictError, LimitError, PenstockError, UnknownError
from penstock.gateway.events import Ended, Event, Manner, Opened, Rewarded, Slot, Stored
from penstock.gateway.journal import Note
from penstock.gateway.rollouts import rollout_of, verdict
from penstock.gateway.session import Session, Surroundings
from penstock.gateway.slots import OpenSession
from penstock.types import Rollout, RolloutStatus
from penstock.types.frozen import changed
from penstock.wire import digest

log = logging.getLogger(__name__)

SWEEP_SECONDS = 1.0
_MOST_CLOSED = 256
"""Sessions that have ended and are still held in memory, to be asked about. The others come from the journal."""
_ID = re.compile(r"s-[0-9a-f]{32}")

FindSlot = Callable[[OpenSession, str, frozenset[tuple[str, int]]], Awaitable[Slot]]
"""The slot of a new session, from what its client wants, its id, and what is taken here."""
Sink = Callable[[Rollout], Awaitable[Stored]]
"""Where rollouts go. May be given the same one again."""


class Sessions:
    """The sessions. Belongs to one event loop."""

    def __init__(self, around: Surroundings, sink: Sink, *, find_slot: FindSlot | None = None, manner: Manner | None = None, policy: str = "policy") -> None:
        """Without `find_slot` clients cannot open sessions: whoever made this does, by `begin`."""
        self._around, self._sink, self._find_slot = around, sink, find_slot
        self._manner, self._policy = manner or Manner(), policy
        self._live: dict[str, Session] = {}
        self._closed: OrderedDict[str, Session] = OrderedDict()
        self._notes: dict[str, Note] = {}
        """Every session that is open, also those that nobody has asked for since the start."""
        self._locks: dict[str, asyncio.Lock] = {}
        self._started = around.clock.monotonic()
        self._opening = 0

    @property
    def num_open(self) -> int:
        """Sessions that have not ended."""
        return len(self._notes)

    def live(self) -> Iterator[Session]:
        """Those that are open and were asked for since the start."""
        return iter(self._live.values())

    async def recover(self) -> int:
        """Take over the sessions that an earlier life of this gateway has left open; how many there are."""
        self._notes = await self._around.journal.notes()
        return len(self._notes)

    async def open(self, wanted: OpenSession) -> Session:
        """A new session, or the one that is open under the same key. Raises what `Slots.slot` does, and `LimitError` if there are too many."""
        if self._find_slot is None:
            raise ConflictError("sessions are opened by the worker that this gateway belongs to")
        if wanted.key is None:
            return await self._open(wanted, self._find_slot)
        async with self._lock("keys"):
            known = next((note.session for note in self._notes.values() if note.key == wanted.key), None)
            return await self._open(wanted, self._find_slot) if known is None else await self.find(known)

    async def _open(self, wanted: OpenSession, find_slot: FindSlot) -> Session:
        session = f"s-{secrets.token_hex(16)}"
        # One at a time: two that ask for the same slot must not both find it free.
        async with self._lock("slots"):
            taken = frozenset((note.group_id, note.member) for note in self._notes.values())
            slot = await find_slot(wanted, session, taken)
            given = {name: value for name in ("temperature", "max_tokens", "allow_filters", "repeats") if (value := getattr(wanted, name)) is not None}
            manner = changed(self._manner, **given) if given else self._manner
            return await self.begin(
                slot,
                session=session,
                seed=wanted.seed,
                seconds=wanted.deadline_seconds,
                manner=manner,
                key=wanted.key or "",
                metadata=dict(wanted.metadata),
            )

    async def begin(
        self,
        slot: Slot,
        *,
        session: str | None = None,
        seed: int | None = None,
        seconds: float | None = None,
        manner: Manner | None = None,
        key: str = "",
        metadata: dict[str, object] | None = None,
    ) -> Session:
        """Begin a session that fills a slot."""
        if self.num_open + self._opening >= self._around.limits.max_sessions:
            raise LimitError(f"{self.num_open} sessions are open; that is the most")
        seconds = min(seconds or self._around.limits.session_seconds, self._around.limits.session_seconds)
        opened = Opened(
            session=session or f"s-{secrets.token_hex(16)}",
            slot=slot,
            seed=int(digest(slot.uid.encode())[:15], 16) if seed is None else seed,
            deadline_at=self._around.clock.now() + seconds,
            manner=manner or self._manner,
            metadata=metadata or {},
        )
        self._opening += 1
        try:
            note = Note(session=opened.session, key=key, group_id=slot.group_id, member=slot.member, deadline_at=opened.deadline_at)
            made = Session(self._around, opened)
            # With its note: a session that nobody could find again would never end.
            await made.append([Event(at=int(self._around.clock.now() * 1000), opened=opened)], note)
            self._live[opened.session], self._notes[opened.session] = made, note
        finally:
            self._opening -= 1
        self._around.count("sessions", 1)
        return made

    async def find(self, id: str) -> Session:
        """A session, from memory or from its journal. Raises `UnknownError`."""
        known = self.known(id)
        if known is not None:
            return known
        if not _ID.fullmatch(id):
            raise UnknownError("there is no such session")
        async with self._lock(id):
            known = self.known(id)
            if known is not None:
                return known
            session = Session.replayed(self._around, await self._around.journal.load(id))
            if session.stored is None:
                self._live[id] = session
            else:
                self._close(session)
        if session.ended is not None and session.stored is None:
            await self._store(session)
        return session

    def known(self, id: str) -> Session | None:
        """A session that is in memory."""
        session = self._live.get(id) or self._closed.get(id)
        # Somebody else has gone on with it: the journal knows better.
        return None if session is None or session.is_stale else session

    async def end(self, id: str, ended: Ended, rewarded: Rewarded | None = None) -> Session:
        """Give a session a last reward, end it and store its rollout. Ended before: nothing happens but that a rollout that is not stored yet is stored.

        Raises `InvalidError` if the session has no reward and says nothing about a failure, `StoreError` if the buffer does not answer: ask again.
        """
        session = await self.find(id)
        if session.ended is None:
            # Before it is written down, so that a session without a reward stays open and can be given one.
            rewards = session.rewards if rewarded is None else session.rewards.after(rewarded)
            verdict(session.opened, session.conversation, rewards, ended, trainable_policy=self._policy)
            await session.tell(rewarded=rewarded, ended=ended)
            self._around.count(f"ended/{ended.error or ended.status.value}", 1)
        if session.stored is None:
            await self._store(session)
        return session

    async def sweep_forever(self) -> None:
        """End sessions that are over time.

        takes: an open session     waits for: its deadline, or that nobody has asked it anything for long
        gives: a failed rollout    ends: never
        """
        while True:
            await self._around.clock.sleep(SWEEP_SECONDS)
            await self.sweep()

    async def sweep(self) -> None:
        """See `sweep_forever`."""
        for note in list(self._notes.values()):
            ended = self._overdue(note)
            if ended is None:
                continue
            try:
                await self.end(note.session, ended)
            except UnknownError:
                await self._drop(note)
            except PenstockError as error:
                log.warning("a session that is over time cannot be ended yet: %s", error)

    def _overdue(self, note: Note) -> Ended | None:
        """Why a session has to be ended, if it has."""
        limits, session = self._around.limits, self._live.get(note.session)
        if self._around.clock.now() >= note.deadline_at:
            return _failed("deadline", "the session was still open at its deadline")
        if session is not None and session.num_requests:
            return None
        touched = self._started if session is None else session.touched
        if self._around.clock.monotonic() - touched >= limits.idle_seconds:
            return _failed("idle", f"nobody asked the session anything for {limits.idle_seconds:g} s")
        return None

    async def _store(self, session: Session) -> None:
        id = session.opened.session
        async with self._lock(id):
            if session.stored is None:
                assert session.ended is not None
                rollout = rollout_of(session.opened, session.conversation, session.rewards, session.ended, trainable_policy=self._policy)
                stored = await self._sink(rollout)
                note = self._notes.get(id)
                await session.tell(stored=stored, note=None if note is None else changed(note, is_open=False))
                self._around.count(f"written/{stored.fate}", 1)
        self._close(session)
        self._notes.pop(id, None)
        self._locks.pop(id, None)

    async def _drop(self, note: Note) -> None:
        await self._around.journal.note(changed(note, is_open=False))
        self._notes.pop(note.session, None)
        self._locks.pop(note.session, None)

    def _close(self, session: Session) -> None:
        self._live.pop(session.opened.session, None)
        self._closed[session.opened.session] = session
        if len(self._closed) > _MOST_CLOSED:
            self._closed.popitem(last=False)

    def _lock(self, name: str) -> asyncio.Lock:
        return self._locks.setdefault(name, asyncio.Lock())


def _failed(error: str, sentence: str) -> Ended:
    return Ended(status=RolloutStatus.INFRA_ERROR, failure=sentence, error=error)
