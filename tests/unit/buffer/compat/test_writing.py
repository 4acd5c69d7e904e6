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
from penstock.buffer.compat.service import CompatService
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
