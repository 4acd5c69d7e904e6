"""Items of a `SqliteStore` whose bytes have moved to the archive, and items whose rows were changed behind its back."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.services.store_stage import RUN, group, item

from penstock.buffer.archive.archiver import Archiver
from penstock.buffer.archive.config import ArchiveConfig
from penstock.buffer.compat.config import CompatConfig
from penstock.buffer.compat.service import CompatService
from penstock.buffer.service import BufferService
from penstock.buffer.store import SqliteStore
from penstock.errors import CorruptError, RetiredError
from penstock.types import ArchiveFile, Moved

FILE = ArchiveFile(run="demo", name="archive/0.parquet", number=0, digest="d", size_bytes=9, rows=1, groups=1)
GONE, HERE = item("gone", 0), item("here", 0, 1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with an item whose bytes are said to be in a file, and one with its bytes."""
    path = tmp_path / "store.sqlite"
    store = SqliteStore(path)
    store.submit([RUN, group(0), GONE, HERE])
    store.submit([Moved(run="demo", uid="gone", content_type=GONE.payload.content_type, digest=GONE.digest, file=FILE.name, row=0)]).result(10)
    store.close()
    return path


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(path)
    yield store
    store.close()


def asked(path: Path, query: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


async def test_bytes_that_have_moved_are_found_where_they_are(tmp_path: Path) -> None:
    bodies = {uid: json.dumps({"uid": uid, "instance_id": "i", "messages": [], "reward": reward}).encode() for uid, reward in (("b", 1.0), ("a", 0.0))}
    store = SqliteStore(tmp_path / "store.sqlite")
    service = BufferService(store, expire_seconds=60.0, max_waiting=8)
    async with service.running():
        compat = CompatService(service, CompatConfig(group_size=2))
        for body in bodies.values():
            await compat.write(body)
        await compat.reader.read(None)
        config = ArchiveConfig(after_seconds=0.0, most_wait_seconds=0.0)
        assert await Archiver(service, config, store_directory=tmp_path, directory=tmp_path / "archive").archive_some("default")
        assert asked(tmp_path / "store.sqlite", "SELECT count(*) FROM item_bodies") == [(0,)]
        assert {uid: store.payload("default", uid).body for uid in bodies} == bodies
        assert [(found.uid, found.body) for found in store.bodies("default", ["i/0"])["i/0"]] == list(bodies.items())


def test_an_item_that_has_moved_is_not_stored_again(store: SqliteStore, path: Path) -> None:
    assert store.submit([GONE]).result(10) is None
    assert asked(path, "SELECT count(*) FROM item_bodies") == [(1,)]
    assert (store.moved("demo", "gone") is None, store.moved("demo", "here")) == (False, None)


@pytest.mark.parametrize(("retired_at", "error"), [(None, CorruptError), (4.5, RetiredError)])
def test_bytes_whose_file_is_gone_are_damaged_unless_it_was_retired_and_hide_no_others(
    store: SqliteStore, retired_at: float | None, error: type[Exception]
) -> None:
    store.submit([replace(FILE, retired_at=retired_at)]).result(10)
    with pytest.raises(error, match="gone"):
        store.payload("demo", "gone")
    assert [found.uid for found in store.bodies("demo", ["src/0/0"])["src/0/0"]] == ["here"]
    assert len(store.corrupt()) == (retired_at is None)


@pytest.mark.parametrize("change", ["body = x'00', encoding = 'zlib'", "body = 'text'", "body = x'00'"])
def test_bytes_that_were_changed_are_left_out_of_their_group_and_reported(path: Path, change: str) -> None:
    asked(path, f"UPDATE item_bodies SET {change}")
    store = SqliteStore(path)
    assert store.bodies("demo", ["src/0/0"]) == {"src/0/0": []}
    with pytest.raises(CorruptError, match="here"):
        store.payload("demo", "here")
    store.close()


@pytest.mark.parametrize("column", ["environment", "group_id", "failure"])
def test_a_column_that_does_not_follow_from_the_facts_of_an_item_is_not_believed(path: Path, column: str) -> None:
    asked(path, f"UPDATE items SET {column} = 'other' WHERE uid = 'here'")
    store = SqliteStore(path)
    with pytest.raises(CorruptError, match="columns that are not its own"):
        store.rollout("demo", "here")
    store.close()
