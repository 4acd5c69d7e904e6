"""Writes that come in one turn of the loop are decided together, each as it would be alone after those before it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.buffer.compat.config import CompatConfig
from penstock.buffer.compat.intake import BYTES_AT_ONCE, LONG_BYTES, read_in_turns, read_items
from penstock.buffer.compat.service import CompatService
from penstock.buffer.compat.state import CompatState
from penstock.buffer.compat.writing import WriteDesk
from penstock.buffer.service import BufferService
from penstock.buffer.store import SqliteStore
from penstock.errors import ConflictError, LimitError, StoreError


def item(uid: str, reward: float = 0.5) -> dict[str, Any]:
    return {"uid": uid, "instance_id": "i", "messages": [], "reward": reward}


ITEM_BYTES = len(json.dumps(item("a")))


class Stage:
    """Compatible routes over a store in a file."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.store = SqliteStore(directory / "store.sqlite")
        self.service = BufferService(self.store, expire_seconds=60.0, max_waiting=8)
        self.compat = CompatService(self.service, CompatConfig(**({"group_size": 4, "hold_seconds": 0.0} | settings)))

    async def write(self, *bodies: Any) -> Sequence[int | BaseException]:
        """Answers to writes of one turn."""
        async with asyncio.timeout(30):
            return await asyncio.gather(*(self.compat.write(json.dumps(body).encode()) for body in bodies), return_exceptions=True)

    def stored(self) -> list[str]:
        return [found.uid for found in self.store.rollouts("default", "i/0")]


@asynccontextmanager
async def running(directory: Path, **settings: Any) -> AsyncIterator[Stage]:
    stage = Stage(directory, **settings)
    async with stage.service.running():
        yield stage


@pytest.mark.parametrize("settings", [{"max_buffer_size": 3}, {"max_buffer_bytes": 3 * ITEM_BYTES}], ids=["items", "bytes"])
async def test_no_more_is_taken_in_a_turn_than_there_is_room_for(tmp_path: Path, settings: dict[str, Any]) -> None:
    async with running(tmp_path, **settings) as stage:
        answers = await stage.write(*(item(uid) for uid in "abcde"))
        assert answers[:3] == [0, 0, 0]
        assert [type(answer) for answer in answers[3:]] == [LimitError, LimitError]
        assert stage.stored() == ["a", "b", "c"]
        # What was stored before needs no room.
        assert await stage.write(item("b")) == [1]


async def test_lists_and_single_items_of_one_turn_are_stored_in_their_order(tmp_path: Path) -> None:
    async with running(tmp_path) as stage:
        assert await stage.write(item("d"), [item("c"), item("b")], item("a")) == [0, 0, 0]
        assert stage.stored() == ["d", "c", "b", "a"]


async def test_of_a_list_with_one_conflict_nothing_is_stored_and_others_of_the_turn_are(tmp_path: Path) -> None:
    async with running(tmp_path) as stage:
        first, refused, last = await stage.write(item("a"), [item("b"), item("a", reward=1.0)], item("c"))
        assert (first, last) == (0, 0)
        assert isinstance(refused, ConflictError)
        assert stage.stored() == ["a", "c"]


async def test_an_item_that_comes_after_its_group_was_read_is_not_part_of_it(tmp_path: Path) -> None:
    async with running(tmp_path, min_valid_group_size_ratio=0.5, min_valid_item_size_ratio=0.5) as stage:
        await stage.write(item("a", 1.0), item("b", 0.0))
        batch = await stage.compat.reader.read(None)
        assert batch.read_id is not None
        assert await stage.write(item("late")) == [0]
        again = await stage.compat.reader.read_again(batch.read_id)
        assert again.items is not None
        assert [one["uid"] async for groups in again.items for group in groups for one in json.loads(b"[%b]" % group)] == ["a", "b", "a", "b"]


async def test_everybody_hears_of_a_store_that_takes_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as stage:
        await stage.write(item("a"))
        stage.store.close()
        assert [isinstance(answer, StoreError) for answer in await stage.write(item("b"), [item("c"), item("d")], item("e"))] == [True] * 3


def long_list(first: int, count: int) -> list[dict[str, Any]]:
    """Items of 2 kB, one of an instance."""
    return [
        {"uid": f"u{number}", "instance_id": f"i{number}", "messages": [{"role": "user", "content": "x" * 2000}], "reward": 0.5}
        for number in range(first, first + count)
    ]


async def test_others_get_their_turn_while_a_long_list_is_read_and_it_is_stored_whole(tmp_path: Path) -> None:
    async with running(tmp_path) as stage:
        written = long_list(0, 1000)
        assert len(json.dumps(written)) > 7 * BYTES_AT_ONCE > LONG_BYTES
        seen: list[int] = []
        writing = asyncio.ensure_future(stage.write(written))
        while not writing.done():
            seen.append(stage.service.buffer.ledger("default").trays.num_items if stage.service.buffer.has("default") else 0)
            await asyncio.sleep(0)
        assert await writing == [0]
        assert seen.count(0) > 7 and set(seen) == {0, 1000}


async def test_of_a_long_list_what_was_stored_before_is_left_out(tmp_path: Path) -> None:
    async with running(tmp_path, max_buffer_size=1002) as stage:
        assert await stage.write(long_list(0, 600)) == [0]
        # There is room for 402 more.
        assert await stage.write(long_list(300, 700), long_list(0, 600), long_list(590, 50)) == [300, 600, 50]
        (refused,) = await stage.write([*long_list(300, 400), item("u0")])
        assert isinstance(refused, ConflictError)
        (refused,) = await stage.write([*long_list(300, 400), item("twice"), item("twice", reward=1.0)])
        assert isinstance(refused, ConflictError)
        assert stage.service.buffer.ledger("default").trays.num_items == 1000


async def test_a_list_that_was_looked_up_before_the_store_was_opened_anew_is_to_be_sent_again(tmp_path: Path) -> None:
    async with running(tmp_path) as stage:
        await stage.write(item("a"))
        desk = WriteDesk(CompatState(stage.service, CompatConfig()))
        request = await desk.sifted(read_items(json.dumps([item("a"), item("b")]).encode(), "default"), int)
        assert [found.uid for found in request.items] == ["b"]
        stage.service.buffer.reopen()
        with pytest.raises(LimitError, match="send the items again"):
            await desk.put(request)
        assert stage.stored() == ["a"]


async def test_a_long_list_is_read_as_a_short_one_is() -> None:
    body = json.dumps(long_list(0, 300)).encode()
    assert await read_in_turns(body, "t") == read_items(body, "t")
