"""The compatible buffer as a service: items in, groups out, over the ledger and store that everything else uses."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

from penstock.buffer.compat.config import CompatConfig
from penstock.buffer.compat.hooks import Hooks
from penstock.buffer.compat.intake import is_long, read_in_turns, read_items
from penstock.buffer.compat.progress import num_written
from penstock.buffer.compat.reader import Reader
from penstock.buffer.compat.state import READER, CompatState
from penstock.buffer.compat.writing import Request, WriteDesk
from penstock.buffer.service import BufferService
from penstock.errors import PenstockError

log = logging.getLogger(__name__)

T = TypeVar("T")

CLOCK_SECONDS = 0.5
"""How often timeouts are looked at."""


class CompatService:
    """Use as a context beside that of the buffer: `async with compat.running():`."""

    def __init__(self, service: BufferService, config: CompatConfig, hooks: Callable[[str], Hooks | None] = lambda task_type: None) -> None:
        self._state = CompatState(service, config)
        self._config = config
        self._desk = WriteDesk(self._state)
        self._reading = asyncio.Lock()
        self.reader = Reader(self._state, hooks)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Timeouts are acted on meanwhile."""
        await asyncio.to_thread(self._state.look)
        clock = asyncio.create_task(self._time_out_forever())
        try:
            yield
        finally:
            clock.cancel()

    async def write(self, body: bytes) -> int:
        """Store the items of a request and return once they are durable; how many of them were there before.

        Raises `InputError` if one of them may not be stored, and then none of them is; `LimitError` if there is no room for them in time.
        """
        return await self.writing(body, int)

    def writing(self, body: bytes, reply: Callable[[int], T]) -> asyncio.Future[T]:
        """As `write`, for those who cannot wait themselves: a future of what `reply` makes of the number.

        What cannot be read raises `InputError` here, or in the future.
        """
        state = self._state
        state.look()
        if is_long(body):
            return asyncio.ensure_future(self._write_long(body, reply))
        return self._desk.put(Request(read_items(body, state.task_type), len(body), reply))

    async def _write_long(self, body: bytes, reply: Callable[[int], T]) -> T:
        # One after the other: two at once would not be read any sooner, but would both be in memory.
        async with self._reading:
            items = await read_in_turns(body, self._state.task_type)
            place = self._desk.put(await self._desk.sifted(items, reply))
        found: T = await place
        return found

    def stats(self) -> dict[str, Any]:
        """Sizes, as the original tells them, and the id of the last read."""
        empty = {"current_size": 0, "max_size": self._state.max_items, "total_written": 0, "total_read": 0, "last_read_id": None}
        if not self._state.is_open:
            return empty
        ledger = self._state.ledger
        reader = ledger.readers.get(READER)
        return empty | {
            "current_size": ledger.trays.num_items,
            "total_written": num_written(ledger),
            "total_read": reader.items if reader else 0,
            "last_read_id": reader.read_id if reader else None,
        }

    async def settled(self) -> None:
        """Returns once everything that anybody was shown here is durable."""
        await self._state.service.settled()

    def prepared(self, payload: dict[str, Any]) -> CompatConfig:
        """The settings that a payload of `/start_rollout` asks for. Raises `InvalidError` if they cannot be."""
        self._state.look()
        return self._state.settings(str(payload.get("task_type", self._state.task_type))).with_payload(payload)

    async def use(self, settings: CompatConfig) -> None:
        """From now on items belong to `settings.task_type`, under these settings; after a restart too."""
        await self._state.use(settings)

    async def finished_ids(self, task_type: str) -> list[str]:
        """Instances of a task type, once for each pass that was ever finished."""
        if not self._state.is_open:
            return []
        await self._state.service.settled()
        return await asyncio.to_thread(self._finished_ids, task_type)

    def _finished_ids(self, task_type: str) -> list[str]:
        groups = self._state.service.buffer.store.scan_groups(self._config.run)
        return [group.arrival.instance for group in groups if group.arrival and group.environment == task_type and group.ready_at is not None]

    async def _time_out_forever(self) -> None:
        while True:
            await asyncio.sleep(CLOCK_SECONDS)
            try:
                ended = await self._state.time_out()
            except PenstockError as error:
                log.warning("timeouts wait: %s", error)
                continue
            if ended:
                states = Counter("dropped" if group.reason else "used" for group in ended)
                log.info("%d groups got no item for too long: %s", len(ended), ", ".join(f"{count} {state}" for state, count in sorted(states.items())))
