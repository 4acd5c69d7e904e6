"""The background task that moves settled groups to the archive, one file at a time.

takes: groups that have ended    waits for: enough of them, or one that has waited long
gives: Parquet files             ends: when cancelled; a file that was not registered by then is removed by the next life

Reading and encoding happen in a thread; the store is told in one transaction of bounded size, in line with everybody else's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from penstock.buffer.archive.collecting import Collected, collect, filed
from penstock.buffer.archive.config import ArchiveConfig
from penstock.buffer.archive.files import Written, file_path, remove_file, show_file, tidy, write_file
from penstock.buffer.archive.reading import load_parquet
from penstock.buffer.archive.retention import to_retire
from penstock.buffer.core import Buffer
from penstock.buffer.service import BufferService
from penstock.process.points import reach
from penstock.types import Record

log = logging.getLogger(__name__)


class Archiver:
    """Archives what the service's buffer holds. `store_directory` is where its store is, `directory` where the files go."""

    def __init__(self, service: BufferService, config: ArchiveConfig, *, store_directory: Path, directory: Path) -> None:
        self._service, self._config, self._now = service, config, service.now
        self._store_directory, self._directory = store_directory, directory
        self._damaged: dict[str, set[str]] = {}
        """By run: groups that cannot be archived, told once."""
        self._look_again_at: dict[str, float] = {}
        """By run: until then nothing can be archived. To look at what waits costs as much as to write it."""
        self._skipped: dict[str, dict[int, tuple[str, ...]]] = {}
        """By run and update: groups of plans that were skipped."""

    async def run_forever(self) -> None:
        """Archive and retire until cancelled. What the disk or the store refuses is tried again later."""
        await asyncio.to_thread(self._tidy)
        while True:
            try:
                for run in self._service.buffer.runs():
                    while await self.archive_some(run):
                        pass
                    await self.retire_some(run)
            except Exception as error:  # whatever it was, the buffer goes on, and so must this task
                log.warning("nothing is archived for now: %s: %s", type(error).__name__, error)
            await asyncio.sleep(self._config.every_seconds)

    async def archive_some(self, run: str) -> bool:
        """Write one file, if there is enough for one. Whether it did."""
        buffer = self._service.buffer
        if self._now() < self._look_again_at.get(run, 0.0):
            return False
        found = await asyncio.to_thread(collect, buffer.store, run, self._config, self._now(), without=self._damaged.get(run, ()))
        self._look_again_at[run] = found.look_again_at
        self._tell_damage(run, found)
        if not found.groups:
            return False
        number = buffer.store.next_archive_number(run)
        written = await asyncio.to_thread(self._write, run, number, found) if found.rows else None
        reach("buffer.archive_written")
        updates = {group_id: update for update, ids in self._skipped_plans(run).items() for group_id in ids}
        records = filed(found.groups, written, store_directory=self._store_directory, number=number, updates=updates, now=self._now())
        await self._file_away(records)
        reach("buffer.archive_registered")
        if written is not None:
            await asyncio.to_thread(show_file, written.path)
            log.info("%d rollouts of %d groups moved to %s", written.rows, len(found.groups), written.path.name)
        return True

    async def retire_some(self, run: str) -> None:
        """Delete the files that retention gives up: first on record, then on disk."""
        buffer = self._service.buffer
        checkpoints = buffer.ledger(run).checkpoints
        retired = to_retire(buffer.store.archive_files(run), self._config, oldest_checkpoint=min(checkpoints, default=None), now=self._now())
        for file in retired:
            await self._file_away([replace(file, retired_at=self._now())])
            await asyncio.to_thread(remove_file, self._store_directory / file.name)
            log.info("%s with %d rollouts is retired", file.name, file.rows)

    async def _file_away(self, records: Sequence[Record]) -> None:
        """Make durable what the archive has to say of groups that have ended. No law looks at those any more, so the ledger need not know."""
        submitted = await asyncio.to_thread(self._service.buffer.store.submit, records)
        await asyncio.shield(asyncio.wrap_future(submitted))

    def _write(self, run: str, number: int, found: Collected) -> Written:
        return write_file(file_path(self._directory, run, number), found.rows)

    def _tidy(self) -> None:
        store = self._service.buffer.store
        files = [file for run in store.runs() for file in store.archive_files(run.run)]
        tidy(self._store_directory, self._directory, files)
        if files:
            # Here and not when the first reader asks, who would make everybody wait for the import.
            load_parquet()

    def _tell_damage(self, run: str, found: Collected) -> None:
        for group_id, sentence in found.damaged:
            log.warning("group %s is not archived: %s", group_id, sentence)
            self._damaged.setdefault(run, set()).add(group_id)

    def _skipped_plans(self, run: str) -> dict[int, tuple[str, ...]]:
        """Groups of skipped plans: a replay looks at them, though their records name no update."""
        buffer: Buffer = self._service.buffer
        known = self._skipped.setdefault(run, {})
        for update, outcome in buffer.ledger(run).outcomes.items():
            if outcome.kind == "skipped" and update not in known:
                plan = buffer.store.plan(run, update)
                known[update] = tuple(group.id for group in plan.groups) if plan is not None else ()
        return known


@contextlib.asynccontextmanager
async def archiving(service: BufferService, config: ArchiveConfig, *, store_directory: Path, directory: Path) -> AsyncIterator[None]:
    """The archiver runs meanwhile, if it is wanted and pyarrow is there."""
    if not config.enabled:
        yield
        return
    if find_spec("pyarrow") is None:
        log.info("nothing is archived: pyarrow is not installed (pip install 'penstock[archive]')")
        yield
        return
    task = asyncio.create_task(Archiver(service, config, store_directory=store_directory, directory=directory).run_forever())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
