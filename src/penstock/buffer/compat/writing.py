"""Where writes are decided: all that a turn of the event loop has brought at once, so that what they have in common is done once."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from penstock.buffer.compat.state import CompatState
from penstock.buffer.core import Buffer
from penstock.errors import ConflictError, InputError, LimitError
from penstock.ledger import Ledger
from penstock.ledger.arrivals import Item, check_together, conflict

LOOKED_UP_AT_ONCE = 256
"""Items that are looked up before others get a turn: a few milliseconds if all were stored before."""
Place = tuple[asyncio.Future[Any], Any]
"""A future, and what it will be: a reply or a refusal."""


class Request(NamedTuple):
    """Items that came together, and what is made of the number of those that were there before."""

    items: Sequence[Item]
    num_bytes: int
    reply: Callable[[int], Any]
    life: int | None = None
    """Of the ledger, if what was stored before has been left out: that must still be so when the rest is decided."""


_Waiting = tuple[asyncio.Future[Any], Request]


class WriteDesk:
    """Takes requests, and decides at the end of the turn. For one event loop."""

    def __init__(self, state: CompatState) -> None:
        self._state = state
        self._config = state.config
        self._waiting: list[_Waiting] = []
        self._held: set[asyncio.Task[None]] = set()

    def put(self, request: Request) -> asyncio.Future[Any]:
        """A future of the reply, or of why nothing of the request was stored."""
        loop = asyncio.get_running_loop()
        place = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._decide)
        self._waiting.append((place, request))
        return place

    async def sifted(self, items: Sequence[Item], reply: Callable[[int], Any]) -> Request:
        """A request of very many items, without those that were stored before: to look them up takes long, so others get a turn meanwhile.

        Raises `ConflictError` if one is stored with other bytes.
        """
        buffer = self._state.service.buffer
        life, new = -1, list(items)
        while life != buffer.lives:
            life = buffer.lives
            try:
                new = await self._new(items)
            except ConflictError:
                await self._state.service.settled()
                raise
        num_known = len(items) - len(new)
        return Request(new, sum(len(item.body) for item in new), lambda num_others: reply(num_known + num_others), life)

    async def _new(self, items: Sequence[Item]) -> list[Item]:
        """Those that are not stored."""
        store = self._state.service.buffer.store
        new: list[Item] = []
        for place, item in enumerate(items):
            if place % LOOKED_UP_AT_ONCE == 0:
                await asyncio.sleep(0)
                if not self._state.is_open:
                    return list(items)
                ledger = self._state.ledger
            known = ledger.find_rollout(store, item.uid)
            if known is None:
                new.append(item)
            elif known.digest != item.digest:
                raise conflict(item, known.digest)
        return new

    def _decide(self) -> None:
        waiting, self._waiting = self._waiting, []
        try:
            self._state.look()
            ledger = self._state.open()
            singles: list[_Waiting] = []
            num_bytes = 0
            for place, request in waiting:
                if self._is_full(ledger, len(singles) + len(request.items), num_bytes + request.num_bytes):
                    self._hold(place, request)
                elif len(request.items) == 1 and request.life is None:
                    singles.append((place, request))
                    num_bytes += request.num_bytes
                else:
                    self._take(ledger, singles)
                    self._take(ledger, [(place, request)])
                    singles, num_bytes = [], 0
            self._take(ledger, singles)
        except Exception as error:  # whatever it was, somebody waits for these futures and must hear of it
            _fail([place for place, _ in waiting], error)

    def _take(self, ledger: Ledger, waiting: Sequence[_Waiting]) -> None:
        """Decide about requests for which there is room: any number of one item each, or one of several items."""
        if not waiting:
            return
        first = waiting[0][1]
        is_list = len(first.items) != 1 or first.life is not None
        self._state.service.follow(*([self._list_arrived(ledger, *waiting[0])] if is_list else self._arrived(waiting)))

    def _arrived(self, waiting: Sequence[_Waiting]) -> list[Place]:
        """Decide about requests of one item."""
        items = [request.items[0] for _, request in waiting]
        return [
            (place, known if isinstance(known, InputError) else request.reply(known))
            for (place, request), known in zip(waiting, self._stored(items), strict=True)
        ]

    def _list_arrived(self, ledger: Ledger, place: asyncio.Future[Any], request: Request) -> Place:
        """Decide about a request of several items: all of them or none."""
        if request.life not in (None, self._state.service.buffer.lives):
            return place, LimitError("the store was opened anew meanwhile; send the items again", http_status=503)
        try:
            check_together(ledger, self._state.service.buffer.store, request.items)
        except InputError as error:
            return place, error
        stored = self._stored(request.items)
        refusal = next((known for known in stored if isinstance(known, InputError)), None)
        return place, refusal or request.reply(sum([known for known in stored if not isinstance(known, InputError)]))

    def _stored(self, items: Sequence[Item]) -> list[int | InputError]:
        """For each item whether it was there before (0 or 1), or why it is not taken."""
        state = self._state
        progress, bodies = state.progress, state.bodies
        known: list[int | InputError] = []
        answers = state.service.decided(partial(Buffer.arrive_all, run=self._config.run, rules=state.rules, items=items)).reply
        for item, answer in zip(items, answers, strict=True):
            if isinstance(answer, InputError):
                known.append(answer)
                continue
            stored = answer.item
            known.append(stored is None)
            if stored is not None:
                progress.arrived(item, answer)
                if not answer.late:
                    bodies.add(stored.group_id, stored.member, item.body)
        return known

    def _is_full(self, ledger: Ledger, num_items: int, num_bytes: int) -> bool:
        trays, most_bytes = ledger.trays, self._config.max_buffer_bytes
        return trays.num_items + num_items > self._state.max_items or (most_bytes is not None and trays.num_bytes + num_bytes > most_bytes)

    def _check_ever(self, num_items: int, num_bytes: int) -> None:
        """Raise `LimitError` for what would have no room in an empty buffer either: who waits for it waits for ever."""
        most_items, most_bytes = self._state.max_items, self._config.max_buffer_bytes
        if num_items > most_items or (most_bytes is not None and num_bytes > most_bytes):
            most = f"{most_items} items" + (f" and {most_bytes} bytes" if most_bytes is not None else "")
            raise LimitError(f"{num_items} items with {num_bytes} bytes at once: the buffer holds {most} at most; send fewer", http_status=413)

    def _hold(self, place: asyncio.Future[Any], request: Request) -> None:
        """Let a request wait until there is room for it."""
        task = asyncio.ensure_future(self._later(place, request))
        self._held.add(task)
        task.add_done_callback(self._held.discard)

    async def _later(self, place: asyncio.Future[Any], request: Request) -> None:
        try:
            await self._room(request.items)
            self._state.look()
            self._take(self._state.open(), [(place, request)])
        except Exception as error:  # as above
            _fail([place], error)

    async def _room(self, items: Sequence[Item]) -> None:
        """Wait until a reader has made room. Raises `LimitError` if none does in time. What was stored before needs none."""
        service = self._state.service
        new = [item for item in items if self._state.ledger.find_rollout(service.buffer.store, item.uid) is None]
        num_items, num_bytes = len(new), sum(len(item.body) for item in new)
        self._check_ever(num_items, num_bytes)
        deadline = time.monotonic() + self._config.hold_seconds
        while True:
            changed = service.next_change()
            if not new or not self._is_full(self._state.ledger, num_items, num_bytes):
                return
            left = deadline - time.monotonic()
            if left <= 0:
                trays = self._state.ledger.trays
                raise LimitError(f"the buffer is full: {trays.num_items} items with {trays.num_bytes} bytes wait to be read", retry_after_seconds=5.0)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), left)


def _fail(places: Sequence[asyncio.Future[Any]], error: Exception) -> None:
    for place in places:
        if not place.done():
            place.set_exception(error)
