"""Whatever is asked for, nobody else waits long: what takes long goes in steps, or beside the event loop."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.types import Message

from penstock.buffer import status
from penstock.buffer.compat.choosing import GROUPS_AT_ONCE as CHOSEN_AT_ONCE
from penstock.buffer.compat.config import CompatConfig
from penstock.buffer.compat.reader import DROPPED_AT_ONCE, Batch
from penstock.buffer.compat.service import CompatService
from penstock.buffer.compat.state import CompatState
from penstock.buffer.core import Buffer
from penstock.buffer.routes import producing
from penstock.buffer.routes.reading import GROUPS_AT_ONCE, stored_groups
from penstock.buffer.service import BufferService
from penstock.buffer.store import SqliteStore
from penstock.errors import StoreError
from penstock.ledger import imbalance
from penstock.ledger.arrivals import TIMED_OUT_AT_ONCE
from penstock.types import GroupState, Laws, LeaseRecord, LeaseRequest, Purpose, Record, RolloutRecord


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


async def uids_of(batch: Batch) -> set[str]:
    """Items of a read, without what fills up its groups."""
    assert batch.items is not None
    return {each["uid"] async for page in batch.items for group in page for each in json.loads(b"[%b]" % group)}


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


async def test_others_get_their_turn_while_a_read_chooses_and_serves(tmp_path: Path) -> None:
    async with serving(SqliteStore(tmp_path / "store.sqlite"), group_size=2) as (_, compat):
        await compat.write(items(2 * CHOSEN_AT_ONCE + 1, 2))
        await compat.settled()
        async with others() as turns:
            looked = await compat.reader.peek(10**9)
            assert turns[0] >= 2 and looked.items is not None
            before = turns[0]
            num_pages = len([page async for page in looked.items])
            assert turns[0] - before >= num_pages > 2


@pytest.mark.parametrize("batch_size", [None, 4 * CHOSEN_AT_ONCE])
async def test_what_others_take_while_a_read_chooses_is_not_given_twice(tmp_path: Path, batch_size: int | None) -> None:
    num_groups = 2 * CHOSEN_AT_ONCE + 100
    async with serving(SqliteStore(tmp_path / "store.sqlite"), group_size=2) as (service, compat):
        await compat.write(items(num_groups, 2))

        async def lease() -> LeaseRecord:
            # From the front, which the read has looked at by then.
            pending = service.decided(lambda buffer: buffer.take_lease("default", "one", "me", LeaseRequest(groups=10)))
            assert isinstance(pending.reply, LeaseRecord)
            return await service.durable(pending)

        batch, leased = await asyncio.gather(compat.reader.read(batch_size), lease())
        assert batch.items is not None and batch.num_items == 2 * (num_groups - 10 if batch_size is None else 2 * CHOSEN_AT_ONCE)
        given = [each["instance_id"] async for page in batch.items for group in page for each in json.loads(b"[%b]" % group)][::2]
        assert [group.id for group in leased.groups] == [f"i{number}/0" for number in range(10)]
        assert given == [f"i{number}" for number in range(10, 10 + batch.num_items // 2)]


async def test_a_group_that_grows_while_a_read_chooses_is_left_to_the_next_with_all_of_its_items(tmp_path: Path) -> None:
    async with serving(SqliteStore(tmp_path / "store.sqlite"), group_size=4, min_valid_group_size_ratio=0.5) as (_, compat):
        await compat.write(items(3 * CHOSEN_AT_ONCE + 1, 2))
        late = b'{"uid": "i0-2", "instance_id": "i0", "messages": [], "reward": 1}'
        first, _ = await asyncio.gather(compat.reader.read(None), compat.write(late))
        second = await compat.reader.read(None)
        given = [await uids_of(batch) for batch in (first, second)]
        assert given[0] == {f"i{number}-{member}" for number in range(1, 3 * CHOSEN_AT_ONCE + 1) for member in range(2)}
        assert given[1] == {"i0-0", "i0-1", "i0-2"}


async def test_a_group_that_somebody_takes_while_a_read_would_drop_it_is_his(tmp_path: Path) -> None:
    async with serving(SqliteStore(tmp_path / "store.sqlite"), group_size=2) as (service, compat):
        await compat.write(items(CHOSEN_AT_ONCE + 1, 2).replace(b'"reward": 0', b'"reward": 1'))
        taking = service.told(lambda buffer: buffer.take_lease("default", "one", "me", LeaseRequest(groups=1)))
        batch, _ = await asyncio.gather(compat.reader.read(None), taking)
        assert batch.items is None and batch.meta_info["dropped"] == {"equal_rewards": CHOSEN_AT_ONCE}
        assert [(group.id, group.state) for group in service.buffer.ledger("default").groups.values()] == [("i0/0", GroupState.BOUND)]


async def test_others_get_their_turn_while_a_read_drops_very_many_groups(tmp_path: Path) -> None:
    num_groups = 4 * DROPPED_AT_ONCE + 1
    async with serving(SqliteStore(tmp_path / "store.sqlite"), group_size=2) as (service, compat):
        await compat.write(items(num_groups, 2).replace(b'"reward": 0', b'"reward": 1'))
        decisions: list[int] = []
        async with others() as turns:

            async def watch() -> None:
                while (num_ready := len(service.buffer.ledger("default").ready["default"])) > 0:
                    decisions.append(num_ready)
                    await asyncio.sleep(0)

            watching = asyncio.create_task(watch())
            batch = await compat.reader.read(None)
            await watching
        assert batch.items is None and batch.meta_info["dropped"] == {"equal_rewards": num_groups}
        assert sorted(set(decisions), reverse=True) == [num_groups - DROPPED_AT_ONCE * place for place in range(5)]
        assert turns[0] >= 5


async def test_others_get_their_turn_while_very_many_groups_are_opened(tmp_path: Path) -> None:
    groups = [{"id": f"s/0/{number}", "environment": "env", "problem_id": "p", "size": 8} for number in range(400)]

    async def receive() -> Message:
        return {"type": "http.request", "body": json.dumps({"groups": groups}).encode(), "more_body": False}

    async with serving(SqliteStore(tmp_path / "store.sqlite")) as (service, _):
        await service.told(lambda buffer: buffer.open_run("run", Laws(), "weights"))
        route = next(operation for operation in producing.OPERATIONS if operation.path.endswith("/groups"))
        request = Request({"type": "http", "method": "POST", "headers": [], "path_params": {"run": "run"}}, receive)
        opening, seen = asyncio.ensure_future(route.call(service, request)), set()
        while not opening.done():
            seen.add(len(service.buffer.ledger("run").groups))
            await asyncio.sleep(0)
        assert json.loads((await opening).body) == {"opened": 400, "created": 400, "waiting": None}
        assert len(seen) > 5


async def test_what_happened_since_the_last_read_is_counted_beside_the_event_loop_when_the_store_is_back(tmp_path: Path) -> None:
    threads: list[int] = []

    class Failing(SqliteStore):
        fails = False

        def join(self, records: Sequence[Record]) -> Future[None]:
            if self.fails:
                raise StoreError("the disk is gone")
            return super().join(records)

        def reopen(self) -> None:
            self.fails = False
            super().reopen()

        def rollouts_since(self, run: str, stored_at: float) -> Iterator[RolloutRecord]:
            threads.append(threading.get_ident())
            return super().rollouts_since(run, stored_at)

    store = Failing(tmp_path / "store.sqlite")
    async with serving(store, group_size=2) as (service, compat):
        await compat.write(items(3, 2))
        await compat.settled()
        back, store.fails = service.next_change(), True
        with pytest.raises(StoreError):
            await compat.write(items(1, 1, "lost"))
        # Whoever asks meanwhile has nothing counted for it.
        with pytest.raises(StoreError):
            await compat.write(items(1, 1, "lost"))
        await back.wait()
        batch = await compat.reader.read(None)
        assert batch.meta_info["total_samples"] == 6 and batch.meta_info["finished_groups"] == ["i0", "i1", "i2"]
        assert len(threads) == 1 and threads[0] != threading.get_ident()


async def test_others_get_their_turn_while_a_ledger_is_added_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "COUNTED_AT_ONCE", 2)
    async with serving(SqliteStore(tmp_path / "store.sqlite")) as (service, _):
        await service.told(lambda buffer: buffer.open_run("run", Laws(), "weights"))
        for number in range(7):
            opening = partial(Buffer.open_group, run="run", group_id=f"s/0/{number}", environment="env", problem_id="p", purpose=Purpose.TRAIN)
            await service.told(partial(opening, size=3, seed=0, first_estimate=1))
        ledger = service.buffer.ledger("run")
        async with others() as turns:
            assert await status.imbalance_in_turns(service, "run") == 0
            assert turns[0] >= 4
        del ledger.members["s/0/6"][2]
        ledger.counts_of("env", Purpose.TRAIN).groups[GroupState.OPEN, None] += 5
        assert await status.imbalance_in_turns(service, "run") == imbalance(ledger) == 2 + 5 + 5
