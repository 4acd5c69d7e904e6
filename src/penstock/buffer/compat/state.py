"""What the compatible routes keep beside the ledger: settings by task type, and what has happened since the last read."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Any

from penstock.buffer.compat.bodies import BodyCache
from penstock.buffer.compat.config import FROM_PAYLOAD, CompatConfig
from penstock.buffer.compat.progress import Progress
from penstock.buffer.core import Buffer
from penstock.buffer.service import BufferService
from penstock.errors import PenstockError
from penstock.ledger import Ledger
from penstock.types import GroupRecord, GroupState, JournalEntry, Laws
from penstock.wire import canonical_json, parse_json

READER = "get_rollout_data"
"""Whoever reads by the compatible routes: they do not say who they are."""
SETTINGS_JOURNAL = "compat:settings"
"""Episode under which settings that came with `/start_rollout` are kept."""


class CompatState:
    """Shared by those who write and those who read. For one event loop."""

    def __init__(self, service: BufferService, config: CompatConfig) -> None:
        self.service = service
        self.config = config
        self.task_type = config.task_type
        """Environment of the items that are written now."""
        self.rules = config.rules
        """When a group of them is finished."""
        self.max_items = config.max_buffer_size
        """How many may wait to be read."""
        self.progress = Progress()
        self.bodies = BodyCache(config.cache_bytes)
        self._settings: dict[str, CompatConfig] = {}
        self._life = 0
        self._counted: tuple[int, Progress] | None = None
        """What has happened since the last read, as it was when the ledger was loaded for that life."""
        service.when_loaded.append(self._count)

    @property
    def is_open(self) -> bool:
        """Whether the run is there."""
        return self.service.buffer.has(self.config.run)

    @property
    def ledger(self) -> Ledger:
        """The ledger of the run."""
        return self.service.buffer.ledger(self.config.run)

    def settings(self, task_type: str) -> CompatConfig:
        """Settings of a task type."""
        return self._settings.get(task_type, self.config)

    def look(self) -> None:
        """Make anew what is kept here if the ledger was loaded anew. Call it before anything else."""
        buffer = self.service.buffer
        if self._life == buffer.lives or not self.service.is_whole:
            return
        self.progress = Progress()
        self.bodies.clear()
        if self.is_open:
            counted, self._counted = self._counted, None
            self.progress = counted[1] if counted and counted[0] == buffer.lives else Progress.restored(buffer.store, self.ledger, READER)
            for entry in buffer.store.journal(self.config.run, SETTINGS_JOURNAL):
                self._take(self.config.with_payload(_object(entry.body)))
        self._life = buffer.lives

    def _count(self) -> None:
        """Beside the event loop, and before anything else happens there: there may be a million items."""
        # What cannot be read now is told to whoever asks first.
        with contextlib.suppress(PenstockError):
            if self.is_open:
                self._counted = self.service.buffer.lives, Progress.restored(self.service.buffer.store, self.ledger, READER)

    def open(self) -> Ledger:
        """The ledger of the run, which is opened if this is its first item."""
        if not self.is_open:
            self.service.decided(lambda buffer: buffer.open_run(self.config.run, Laws(min_group_size=1), "compatible"))
        return self.ledger

    async def use(self, settings: CompatConfig) -> None:
        """From now on items belong to `settings.task_type`, under these settings; after a restart too."""
        self.look()
        self.open()
        run, store = self.config.run, self.service.buffer.store
        values = {"task_type": settings.task_type} | {name: getattr(settings, name) for name in FROM_PAYLOAD}
        entry = JournalEntry(run=run, episode=SETTINGS_JOURNAL, index=len(store.journal(run, SETTINGS_JOURNAL)), body=canonical_json(values))
        await self.service.told(lambda buffer: buffer.append_journal(run, [entry]))
        self._take(settings)

    async def time_out(self) -> list[GroupRecord]:
        """Finish the groups that have been silent for too long; which they were. They may be very many: others get their turn in between."""
        ended: list[GroupRecord] = []
        for environment in list(self.ledger.trays.by_environment) if self.is_open else ():
            while groups := self._timed_out(environment):
                ended += groups
                await asyncio.sleep(0)
        return ended

    def _timed_out(self, environment: str) -> Sequence[GroupRecord]:
        """Some of those that are to be finished now."""
        self.service.catch_up()
        self.look()
        rules = self.settings(environment).rules
        groups = self.service.decided(partial(Buffer.time_out, run=self.config.run, rules=rules, environment=environment)).reply
        self.progress.finish(groups)
        for group in groups:
            if group.state is GroupState.DROPPED:
                self.bodies.take(group.id)
        return groups

    def _take(self, settings: CompatConfig) -> None:
        self._settings[settings.task_type] = settings
        self.task_type, self.rules = settings.task_type, settings.rules
        # Whoever runs the server has said how much it can hold; a client may ask for less.
        self.max_items = min(settings.max_buffer_size, self.config.max_buffer_size)


def _object(body: bytes) -> dict[str, Any]:
    value = parse_json(body)
    return value if isinstance(value, dict) else {}
