from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path

import pytest

from penstock.buffer.archive.archiver import Archiver
from penstock.buffer.archive.config import ArchiveConfig
from penstock.buffer.compat.config import CompatConfig
from penstock.buffer.compat.service import CompatService
from penstock.buffer.service import BufferService
from penstock.buffer.store import SqliteStore
from penstock.errors import RetiredError


def item(uid: str, reward: float, instance: str = "i") -> bytes:
    return json.dumps({"uid": uid, "instance_id": instance, "messages": [], "reward": reward}).encode()


@pytest.mark.parametrize("cache_bytes", [1, 10**6])
async def test_an_item_that_came_after_a_look_is_not_part_of_it(tmp_path: Path, cache_bytes: int) -> None:
    service = BufferService(SqliteStore(tmp_path / "store.sqlite"), expire_seconds=60.0, max_waiting=8)
    config = CompatConfig(group_size=4, min_valid_group_size_ratio=0.5, min_valid_item_size_ratio=0.5, cache_bytes=cache_bytes)
    async with service.running():
        compat = CompatService(service, config)
        await compat.write(item("a", 1.0))
        await compat.write(item("b", 0.0))
        looked = await compat.reader.peek(1)
        await compat.write(item("c", 1.0))
        assert looked.items is not None and looked.num_items == 4
        shown = [each["uid"] async for groups in looked.items for group in groups for each in json.loads(b"[%b]" % group)]
        assert shown == ["a", "b", "a", "b"]
        taken = await compat.reader.read(None)
        assert taken.items is not None
        read = [each["uid"] async for groups in taken.items for group in groups for each in json.loads(b"[%b]" % group)]
        assert read == ["a", "b", "c", "a"]


async def test_a_read_whose_bytes_retention_gave_up_is_gone(tmp_path: Path) -> None:
    service = BufferService(SqliteStore(tmp_path / "store.sqlite"), expire_seconds=60.0, max_waiting=8)
    async with service.running():
        compat = CompatService(service, CompatConfig(group_size=2))
        await compat.write(item("a", 1.0))
        await compat.write(item("b", 0.0))
        read_id = (await compat.reader.read(None)).read_id
        assert read_id is not None
        config = ArchiveConfig(after_seconds=0.0, most_wait_seconds=0.0, keep_seconds=0.0)
        archiver = Archiver(service, config, store_directory=tmp_path, directory=tmp_path / "archive")
        assert await archiver.archive_some("default")
        again = await compat.reader.read_again(read_id)
        assert again.items is not None and len([groups async for groups in again.items]) == 1 and again.damaged == []
        await archiver.retire_some("default")
        with pytest.raises(RetiredError, match=f"the items of read {read_id} were retired"):
            await compat.reader.read_again(read_id)


async def test_a_group_whose_record_is_damaged_hides_no_other_of_its_read(tmp_path: Path) -> None:
    service = BufferService(SqliteStore(tmp_path / "store.sqlite"), expire_seconds=60.0, max_waiting=8)
    async with service.running():
        compat = CompatService(service, CompatConfig(group_size=2))
        for instance in "xyz":
            await compat.write(item(f"{instance}1", 1.0, instance))
            await compat.write(item(f"{instance}2", 0.0, instance))
        read_id = (await compat.reader.read(None)).read_id
        assert read_id is not None
        with contextlib.closing(sqlite3.connect(tmp_path / "store.sqlite")) as store, store:
            store.execute("UPDATE groups SET body = zeroblob(length(body)) WHERE id = 'y/0'")
        again = await compat.reader.read_again(read_id)
        assert again.items is not None
        read = [each["uid"] async for groups in again.items for group in groups for each in json.loads(b"[%b]" % group)]
        assert (read, again.damaged) == (["x1", "x2", "z1", "z2"], ["y/0"])
