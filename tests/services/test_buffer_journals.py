"""Journals of several episodes in one request."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.services.buffers import Process

from penstock.buffer.client import BufferClient
from penstock.errors import ConflictError, InvalidError
from penstock.types import JournalEntry, Laws
from penstock.wire import encode_json, encode_msgpack, join_items


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    running = Process(tmp_path_factory.mktemp("journals"))
    yield running
    running.kill()


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


async def test_what_is_wrong_is_told(process: Process) -> None:
    async with BufferClient(process.url, "run") as client:
        await client.open_run(Laws(), "00")
    foreign = JournalEntry(run="another", episode="e", index=0, body=b"1")
    for body, kind, status in (
        (join_items([encode_msgpack(foreign)]), "application/msgpack", 422),
        (join_items([encode_json(foreign)], "json"), "application/json", 422),
        (join_items([b"x"]), "application/msgpack", 422),
        (b"\xc1", "application/msgpack", 400),
        (b"{", "application/json", 400),
    ):
        assert process.post("/v1/runs/run/journals", body, kind)[0] == status, body
    assert process.post("/v1/runs/none/journals", join_items([encode_msgpack(foreign)]), "application/msgpack")[0] == 404
