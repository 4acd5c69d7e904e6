"""Journals of episodes: one by one, several in one request, and read again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.services.buffers import Process

from penstock.buffer.client import BufferClient
from penstock.buffer.core import Buffer
from penstock.buffer.store import SqliteStore
from penstock.errors import ConflictError, InvalidError
from penstock.types import JournalEntry, Laws
from penstock.wire import encode_json, encode_msgpack, join_items


async def test_entries_are_taken_together_or_not_at_all_and_the_same_again_changes_nothing(process: Process) -> None:
    async with BufferClient(process.url, "run") as client:
        await client.open_run(Laws(), "00")
        first = [("a", 0, b"1"), ("b", 0, b"2"), ("a", 1, b"3")]
        for _ in range(2):
            await client.append_journals(first)
        with pytest.raises(ConflictError, match="entry 1 of the journal of a"):
            await client.append_journals([("c", 0, b"1"), ("a", 1, b"other")])
        with pytest.raises(ConflictError, match="entry 0 of the journal of d"):
            await client.append_journals([("d", 0, b"1"), ("d", 0, b"other")])
        with pytest.raises(InvalidError, match="the next is 2, not 3"):
            await client.append_journals([("c", 0, b"1"), ("a", 3, b"4")])
        assert [await client.journal(episode) for episode in ("a", "b", "c", "d")] == [[b"1", b"3"], [b"2"], [], []]
        await client.append_journal("a", 2, [b"4"])
        assert await client.journal("a") == [b"1", b"3", b"4"]
        with pytest.raises(InvalidError, match="the next is 0, not 7"):
            await client.append_journal("e", 7, [b"4"])


async def test_a_journal_of_json_is_read_as_json(process: Process) -> None:
    async with BufferClient(process.url, "json") as client:
        await client.open_run(Laws(), "00")
    path = "/v1/runs/json/journal/e"
    for first, entries, length in ((0, b'[{"a": 1}, [2]]', 2), (2, b'["x"]', 3), (1, b"[[2]]", 3), (0, b"[]", 3)):
        status, answer = process.post(f"{path}?index={first}", entries)
        assert (status, json.loads(answer)) == (200, {"entries": length})
    assert json.loads(process.ask("GET", path, None, {"Accept": "application/json"})[1]) == [{"a": 1}, [2], "x"]
    assert process.post(f"{path}?idx=3", b"[1]")[0] == 422
    assert process.post(f"{path}?index=3", join_items([b"\xff"]), "application/msgpack")[0] == 200
    status, answer = process.ask("GET", path, None, {"Accept": "application/json"})
    assert (status, "entry 3" in answer.decode()) == (422, True)


def test_an_append_looks_at_no_more_of_a_journal_than_what_it_follows(tmp_path: Path) -> None:
    looked: list[int] = []

    class Watched(SqliteStore):
        def journal(self, run: str, episode: str, first: int = 0) -> tuple[JournalEntry, ...]:
            found = super().journal(run, episode, first)
            looked.append(len(found))
            return found

    store = Watched(tmp_path / "store.sqlite")
    buffer = Buffer(store, lambda: 0.0)
    buffer.open_run("run", Laws(), "00")
    for index in range(50):
        done = buffer.append_journal("run", [JournalEntry(run="run", episode="e", index=index, body=b"x")])
        assert done.reply == {"e": index + 1}
    assert max(looked) == 1
    store.close()


async def test_what_is_wrong_is_told(process: Process) -> None:
    async with BufferClient(process.url, "run") as client:
        await client.open_run(Laws(), "00")
    foreign = JournalEntry(run="another", episode="e", index=0, body=b"1")
    far = JournalEntry(run="run", episode="e", index=2**64 - 1, body=b"1")
    for body, kind, status in (
        (join_items([encode_msgpack(foreign)]), "application/msgpack", 422),
        (join_items([encode_json(foreign)], "json"), "application/json", 422),
        (join_items([encode_msgpack(far)]), "application/msgpack", 422),
        (join_items([b"x"]), "application/msgpack", 422),
        (b"\xc1", "application/msgpack", 400),
        (b"{", "application/json", 400),
    ):
        assert process.post("/v1/runs/run/journals", body, kind)[0] == status, body
    assert process.post("/v1/runs/none/journals", join_items([encode_msgpack(foreign)]), "application/msgpack")[0] == 404
