"""Whatever is asked for, nobody else waits long: what takes long goes in steps, or beside the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from penstock.buffer.compat.config import CompatConfig
from penstock.buffer.compat.service import CompatService
from penstock.buffer.compat.state import CompatState
from penstock.buffer.routes.reading import GROUPS_AT_ONCE, stored_groups
from penstock.buffer.service import BufferService
from penstock.buffer.store import SqliteStore
from penstock.ledger.arrivals import TIMED_OUT_AT_ONCE
from penstock.types import LeaseRecord, LeaseRequest, RolloutRecord


@asynccontextmanager
async def serving(store: SqliteStore, *, at: list[float] | None = None, **settings: Any) -> AsyncIterator[tuple[BufferService, CompatService]]:
    """The compatible service, on a clock of ours if one is given."""
    service = BufferService(store, expire_seconds=60.0, max_waiting=8, now=None if at is None else lambda: at[0])
    async with service.running():
        yield service, CompatService(service, CompatConfig(**settings))


@asynccontextmanager
async def others() -> AsyncIterator[list[int]]:
    """How often somebody else got a turn so far."""
    turns = [0]

    async def take_turns() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(take_turns())
    yield turns
    task.cancel()


def items(num_groups: int, size: int, prefix: str = "i") -> bytes:
    """A list of items of whole groups."""
    each = [b'{"uid": "%b%d-%d", "instance_id": "%b%d", "messages": [], "reward": %d}' % (prefix.encode(), group, member, prefix.encode(), group, member % 2)
            for group in range(num_groups) for member in range(size)]  # fmt: skip
    return b"[%b]" % b",".join(each)


async def test_the_groups_of_a_plan_or_lease_are_read_beside_the_event_loop(tmp_path: Path) -> None:
    threads: set[int] = set()

    class Watched(SqliteStore):
        def rollouts(self, run: str, group_id: str) -> tuple[RolloutRecord, ...]:
            threads.add(threading.get_ident())
            return super().rollouts(run, group_id)

    async with serving(Watched(tmp_path / "store.sqlite"), group_size=2) as (service, compat):
        await compat.write(items(2 * GROUPS_AT_ONCE + 1, 2))
        lease = await service.told(lambda buffer: buffer.take_lease("default", "one", "me", LeaseRequest()))
        assert isinstance(lease, LeaseRecord)
        threads.clear()
        found = await stored_groups(service, "default", lease.groups, lambda group: (group.group.id, len(group.rollouts), threading.get_ident()))
        assert [group[:2] for group in found] == [(f"i{number}/0", 2) for number in range(2 * GROUPS_AT_ONCE + 1)]
        assert threads and threading.get_ident() not in threads | {group[2] for group in found}


async def test_others_get_their_turn_while_very_many_groups_time_out(tmp_path: Path) -> None:
    at, num_groups = [0.0], 4 * TIMED_OUT_AT_ONCE
    async with serving(SqliteStore(tmp_path / "store.sqlite"), at=at, group_size=4) as (service, compat):
        await compat.write(items(num_groups, 1))
        state = CompatState(service, CompatConfig(group_size=4, group_timeout_seconds=20.0))
        for _ in range(2):
            # In two steps: a time in which nobody could be heard does not count.
            at[0] += 60.0
            service.catch_up()
        async with others() as turns:
            assert len(await state.time_out()) == num_groups
            assert turns[0] >= 4
