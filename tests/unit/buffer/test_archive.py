"""Groups that have ended move to Parquet files: nothing changes for those who ask, and everybody else can read the files."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
import pytest
from tests.unit.buffer.archiving import EAGER, RUN, done, ended_groups, open_group, open_run, rollout, served, write

from penstock.buffer.archive.archiver import Archiver
from penstock.buffer.archive.collecting import collect
from penstock.buffer.archive.reading import ArchiveReader
from penstock.buffer.archive.rows import SettledGroup, rows_of
from penstock.buffer.archive.schema import COLUMNS, columns_table
from penstock.buffer.archive.tables import table_of
from penstock.buffer.checks import check_store
from penstock.buffer.core import Buffer
from penstock.buffer.intake import decode_rollout, rollout_intake
from penstock.buffer.service import BufferService
from penstock.buffer.store import SqliteStore
from penstock.buffer.telling import tell
from penstock.errors import ConflictError, CorruptError, RetiredError
from penstock.types import CutRequest, GroupRecord, GroupState, LeaseRecord, LeaseRequest, Payload, Plan, Purpose, RolloutRecord, RolloutStatus
from penstock.wire import digest, encode_msgpack

DOCS = Path(__file__).parents[3] / "docs" / "archive.md"


def spend(buffer: Buffer) -> None:
    """Let an outside consumer take and settle what is ready."""
    assert isinstance(done(buffer, buffer.take_lease(RUN, "l1", "me", LeaseRequest())), LeaseRecord)
    done(buffer, buffer.settle_lease(RUN, "l1", "me"))


def payloads(store: SqliteStore) -> dict[str, Payload]:
    records = [*store.scan_rollouts(RUN), *(found for group in store.scan_groups(RUN) for found in store.annotations(RUN, group.id))]
    return {record.uid: store.payload(RUN, record.uid) for record in records}


async def archive_all(service: BufferService, archiver: Archiver) -> int:
    files = 0
    while await archiver.archive_some(RUN):
        files += 1
    return files


def hot_bytes(directory: Path) -> dict[str, int]:
    """Length of what the store itself keeps for each payload that has moved."""
    with sqlite3.connect(directory / "store.sqlite") as connection:
        return dict(connection.execute("SELECT uid, length(body) FROM payloads WHERE encoding = 'archived'"))


@pytest.fixture
def archived(tmp_path: Path) -> Iterator[tuple[Path, dict[str, Payload]]]:
    """A store whose ended groups are in one archive file, and all payloads as they were before."""

    async def fill(service: BufferService, archiver: Archiver) -> dict[str, Payload]:
        ended_groups(service.buffer)
        spend(service.buffer)
        before = payloads(service.buffer.store)  # type: ignore[arg-type]
        assert await archive_all(service, archiver) == 1
        return before

    yield tmp_path, served(tmp_path, fill)


def test_what_moves_is_what_has_ended_and_nothing_is_different_for_those_who_ask(archived: tuple[Path, dict[str, Payload]]) -> None:
    directory, before = archived
    store = SqliteStore(directory / "store.sqlite", read_only=True)
    assert payloads(store) == before
    assert {group.id: group.archive for group in store.scan_groups(RUN)} == {f"env/0/{i}": "archive/demo.00000000.parquet" if i < 4 else None for i in range(5)}
    moved = hot_bytes(directory)
    assert moved.keys() == {uid for uid in before if "env/0/4" not in uid}
    assert max(moved.values()) < 40
    file = store.archive_files(RUN)[0]
    assert (file.rows, file.groups, file.newest_update) == (8, 4, None)
    assert file.size_bytes == (directory / file.name).stat().st_size
    assert [path.name for path in (directory / "archive").iterdir()] == ["demo.00000000.parquet"]
    store.close()


def test_a_fetch_from_the_archive_gives_the_same_group(tmp_path: Path) -> None:
    async def act(service: BufferService, archiver: Archiver) -> None:
        ended_groups(service.buffer)
        spend(service.buffer)
        before = service.buffer.fetch(RUN, "env/0/0")
        await archive_all(service, archiver)
        after = service.buffer.fetch(RUN, "env/0/0")
        assert (after.rollouts, after.annotations) == (before.rollouts, before.annotations)
        assert after.group == replace(before.group, archive="archive/demo.00000000.parquet")

    served(tmp_path, act)


def test_a_uid_is_known_for_ever(archived: tuple[Path, dict[str, Payload]]) -> None:
    directory, _ = archived

    async def act(service: BufferService, archiver: Archiver) -> None:
        record, payload = rollout_intake(RUN, encode_msgpack(rollout(0, 0)), "msgpack")
        assert done(service.buffer, service.buffer.accept(RUN, record, payload)).duplicate
        other, body = rollout_intake(RUN, encode_msgpack(replace(rollout(0, 0), reward=0.25)), "msgpack")
        with pytest.raises(ConflictError, match="is stored with digest"):
            service.buffer.accept(RUN, other, body)

    served(directory, act)


def test_every_row_says_what_its_bytes_say(archived: tuple[Path, dict[str, Payload]]) -> None:
    directory, before = archived
    table = parquet.read_table(directory / "archive" / "demo.00000000.parquet")
    assert table.column_names == [column.name for column in COLUMNS]
    rows = {row["uid"]: row for row in table.to_pylist()}
    for uid, row in rows.items():
        assert (row["body"], row["digest"], row["content_type"]) == (before[uid].body, before[uid].digest, before[uid].content_type)
        known = decode_rollout(row["body"], row["content_type"])
        assert (row["member"], row["retry"], row["status"], row["reward"]) == (known.member, known.retry, known.status, known.reward)
        assert {part["name"]: part["value"] for part in row["rewards"]} == known.rewards
        assert row["ids"] == np.concatenate([segment.ids for segment in known.trace.segments]).tolist()
        assert row["logprobs"] == [None, None, None, -0.5, -0.25]
        assert row["token_versions"] == [None, None, None, 0, 0]
        assert [(segment["parent"], segment["length"], segment["source"]) for segment in row["segments"]] == [(None, 3, "env"), (0, 2, "sampled")]
        assert row["messages"] == [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]
    assert rows["env/0/0:1:0"]["lease"] == "l1"
    assert rows["env/0/0:1:0"]["content_type"] == "json"
    assert (rows["env/0/1:0:0"]["counted"], rows["env/0/1:0:1"]["counted"]) == (False, True)
    assert (rows["env/0/1:0:1"]["group_state"], rows["env/0/1:0:1"]["group_reason"]) == ("dropped", "too_few")
    assert rows["env/0/2:0:0"]["purpose"] == "eval"
    assert rows["env/0/0:0:0"]["metadata"] == '{"n":0,"note":"é"}'
    assert [(said["name"], said["step"], digest(said["body"]) == said["digest"]) for said in rows["env/0/0:0:0"]["annotations"]] == [
        ("judge", None, True),
        ("judge", 1, True),
    ]


def test_pandas_polars_and_datasets_read_it(archived: tuple[Path, dict[str, Payload]], monkeypatch: pytest.MonkeyPatch) -> None:
    directory, before = archived
    monkeypatch.setenv("HF_DATASETS_CACHE", str(directory / "cache"))
    file = str(directory / "archive" / "demo.00000000.parquet")
    import pandas
    import polars
    from datasets import Dataset

    frame = pandas.read_parquet(file)
    assert frame.set_index("uid").loc["env/0/0:1:0", "reward"] == 1.5
    assert frame.groupby("group")["tokens"].sum().to_dict() == {"env/0/0": 10, "env/0/1": 15, "env/0/2": 5, "env/0/3": 10}
    polar = polars.read_parquet(file)
    assert polar.filter(polars.col("status") == "ok")["ids"].to_list()[0] == [1, 2, 10, 4, 5]
    assert dict(zip(polar["uid"], polar["body"], strict=True)) == {uid: before[uid].body for uid in polar["uid"]}
    rows = Dataset.from_parquet(file, cache_dir=str(directory / "cache"))
    assert rows[0]["messages"][1]["content"] == "4"  # type: ignore[index]
    assert set(rows["uid"]) == set(polar["uid"])  # type: ignore[index]


def test_too_few_wait_for_more_until_one_has_waited_long(tmp_path: Path) -> None:
    async def act(service: BufferService, archiver: Archiver) -> None:
        ended_groups(service.buffer)
        store, now = service.buffer.store, service.now()
        for config, time, expected in [
            (replace(EAGER, after_seconds=30), now + 29, 0),  # too young
            (replace(EAGER, most_wait_seconds=60), now + 59, 0),  # too few
            (replace(EAGER, most_wait_seconds=60, rollouts_per_file=4), now + 59, 2),  # enough: a group is never split
            (replace(EAGER, after_seconds=30, most_wait_seconds=60), now + 91, 3),  # has waited long
        ]:
            assert len(collect(store, RUN, config, time).groups) == expected

    served(tmp_path, act)


def test_a_damaged_group_stays_and_keeps_nobody_else_back(tmp_path: Path) -> None:
    async def act(service: BufferService, archiver: Archiver) -> None:
        ended_groups(service.buffer)
        with sqlite3.connect(tmp_path / "store.sqlite", timeout=30) as connection:
            connection.execute("UPDATE payloads SET checksum = 0 WHERE uid = 'env/0/1:1:0'")
        await archive_all(service, archiver)
        archives = {group.id: group.archive for group in service.buffer.store.scan_groups(RUN)}
        assert archives["env/0/1"] is None
        assert archives["env/0/2"] == "archive/demo.00000000.parquet"
        with pytest.raises(CorruptError):
            service.buffer.store.payload(RUN, "env/0/1:1:0")

    served(tmp_path, act)


@pytest.mark.parametrize("damaged", [0, 1])
def test_a_file_whose_record_is_damaged_costs_no_other_its_own(tmp_path: Path, damaged: int) -> None:
    async def archive_one(service: BufferService, archiver: Archiver) -> None:
        index = len(list(service.buffer.store.scan_groups(RUN)))
        open_group(service.buffer, index)
        for member in range(2):
            write(service.buffer, rollout(index, member))
        done(service.buffer, service.buffer.take_lease(RUN, f"l{index}", "me", LeaseRequest()))
        done(service.buffer, service.buffer.settle_lease(RUN, f"l{index}", "me"))
        assert await archive_all(service, archiver) == 1

    async def two(service: BufferService, archiver: Archiver) -> None:
        open_run(service.buffer)
        await archive_one(service, archiver)
        await archive_one(service, archiver)

    served(tmp_path, two)
    with contextlib.closing(sqlite3.connect(tmp_path / "store.sqlite")) as tampered, tampered:
        assert tampered.execute("UPDATE facts SET body = zeroblob(3) WHERE kind = 'archive' AND key = ?", (damaged,)).rowcount == 1
    served(tmp_path, archive_one)
    store = SqliteStore(tmp_path / "store.sqlite", read_only=True)
    assert [(file.number, file.name) for file in store.archive_files(RUN)] == [(n, f"archive/demo.0000000{n}.parquet") for n in range(3) if n != damaged]
    assert len(payloads(store)) == 6
    store.close()
    broken = [sentence for finding in check_store(tmp_path / "store.sqlite")[RUN] for sentence in finding.broken]
    assert [sentence.partition(";")[0].partition(":")[0] for sentence in broken] == [
        "archive files are missing on record",
        f"archive 'archive {damaged}' of run 'demo' fails its checksum",
    ]


def test_an_exchanged_row_a_lost_file_and_a_flipped_byte_are_found(archived: tuple[Path, dict[str, Payload]]) -> None:
    directory, _ = archived
    path = directory / "archive" / "demo.00000000.parquet"
    assert [sentence for finding in check_store(directory / "store.sqlite")[RUN] for sentence in finding.broken] == []
    table = parquet.read_table(path)
    rows = table.to_pylist()
    rows[0]["body"] = encode_msgpack(replace(rollout(0, 0), reward=0.25))
    rows[0]["digest"] = digest(rows[0]["body"])
    original = path.read_bytes()
    parquet.write_table(table.from_pylist(rows, schema=table.schema), path)
    broken = [sentence for finding in check_store(directory / "store.sqlite")[RUN] for sentence in finding.broken]
    assert any(sentence.startswith("the archive file archive/demo.00000000.parquet is not as it was written") for sentence in broken)
    assert any(sentence.startswith("'env/0/0:0:0' in row 0 of the archive file archive/demo.00000000.parquet is not what was stored") for sentence in broken)
    flipped = bytearray(original)
    flipped[len(flipped) // 2] ^= 8
    path.write_bytes(flipped)
    assert any("is not as it was written" in sentence for finding in check_store(directory / "store.sqlite")[RUN] for sentence in finding.broken)
    path.unlink()
    broken = [sentence for finding in check_store(directory / "store.sqlite")[RUN] for sentence in finding.broken]
    assert "the archive file archive/demo.00000000.parquet with 8 rollouts is not there" in broken
    assert len([path for path in directory.iterdir() if path.name.startswith(".")]) == 0


def test_a_byte_flipped_anywhere_in_a_file_never_makes_a_wrong_payload(archived: tuple[Path, dict[str, Payload]]) -> None:
    directory, before = archived
    path = directory / "archive" / "demo.00000000.parquet"
    original = path.read_bytes()
    moved = sorted(hot_bytes(directory))
    damaged = 0
    for offset in range(0, len(original), len(original) // 97):
        path.write_bytes(original[:offset] + bytes([original[offset] ^ 16]) + original[offset + 1 :])
        reader = ArchiveReader(directory)
        store = SqliteStore(directory / "store.sqlite", read_only=True)
        for uid in moved:
            place = store.moved(RUN, uid)
            assert place is not None
            try:
                assert reader.payload(place) == before[uid]
            except CorruptError:
                damaged += 1
        store.close()
    assert damaged > 50


def test_retention_deletes_first_on_record_and_then_on_disk(archived: tuple[Path, dict[str, Payload]]) -> None:
    directory, _ = archived

    async def act(service: BufferService, archiver: Archiver) -> None:
        await archiver.retire_some(RUN)
        store = service.buffer.store
        assert list((directory / "archive").iterdir()) == []
        assert store.archive_files(RUN)[0].retired_at is not None
        with pytest.raises(RetiredError, match=r"were retired with the archive file archive/demo\.00000000\.parquet"):
            store.payload(RUN, "env/0/0:0:0")
        record, payload = rollout_intake(RUN, encode_msgpack(rollout(0, 0)), "msgpack")
        assert done(service.buffer, service.buffer.accept(RUN, record, payload)).duplicate
        told = [event.what for event in tell(service.buffer, RUN, "env/0/0:0:0").events]
        assert told[-2:] == [
            "moved to the archive file archive/demo.00000000.parquet",
            "the archive file archive/demo.00000000.parquet was retired: its bytes are gone, what is told here stays",
        ]
        # The next file does not take the name of the one that is gone.
        write(service.buffer, rollout(4, 1))
        open_group(service.buffer, 5, size=1)
        await archive_all(service, archiver)

    served(directory, act, replace(EAGER, keep_bytes=0))
    findings = check_store(directory / "store.sqlite")[RUN]
    assert [sentence for finding in findings for sentence in finding.broken] == []
    assert "bytes of 10 stored rollouts, 8 of them retired" in [finding.checked for finding in findings]


def test_a_group_of_a_skipped_plan_is_kept_as_long_as_the_plan_can_be_replayed(tmp_path: Path) -> None:
    async def act(service: BufferService, archiver: Archiver) -> None:
        buffer = service.buffer
        open_run(buffer)
        for index in range(2):
            open_group(buffer, index)
            write(buffer, rollout(index, 0))
            write(buffer, rollout(index, 1))
        term = done(buffer, buffer.take_term(RUN, "learner", 0)).term
        done(buffer, buffer.keep(RUN, 0, "c", term))
        for update in range(2):
            assert isinstance(done(buffer, buffer.cut(RUN, update, term, CutRequest(groups_per_update=1))), Plan)
            done(buffer, buffer.record(RUN, update, term, skipped="non_finite"))
        await archive_all(service, archiver)
        assert buffer.store.archive_files(RUN)[0].newest_update == 1
        await archiver.retire_some(RUN)
        assert buffer.store.archive_files(RUN)[0].retired_at is None
        done(buffer, buffer.keep(RUN, 2, "d", term))
        done(buffer, buffer.retire(RUN, 0, term))
        await archiver.retire_some(RUN)
        assert buffer.store.archive_files(RUN)[0].retired_at is not None

    served(tmp_path, act, replace(EAGER, keep_seconds=0.0))


def test_an_item_of_the_compatible_routes_keeps_its_bytes_and_shows_its_messages() -> None:
    body = b'{"uid": 7, "instance_id": "i", "messages": [{"role": "user", "content": "hi"}, {"role": "assistant"}, 3], "reward": 1, "extra_info": {"b": 1}}'
    item = RolloutRecord(run=RUN, uid="7", group_id="i/0", member=0, retry=0, status=RolloutStatus.OK, digest=digest(body), reward=1.0, form="item")
    group = GroupRecord(
        run=RUN, id="i/0", environment="default", problem_id="i", purpose=Purpose.TRAIN, size=1, seed=0, state=GroupState.SPENT, order=0, ended_at=2.0
    )
    payload = Payload(run=RUN, uid="7", content_type="json", body=body, digest=digest(body))
    (row,) = table_of(rows_of(SettledGroup(group=group, rollouts=((item, payload),), annotations=(), counted=frozenset({"7"})))).to_pylist()
    assert (row["body"], row["reward"], row["counted"], row["metadata"]) == (body, 1.0, True, '{"b":1}')
    assert row["messages"] == [{"role": "user", "content": "hi"}, {"role": "assistant", "content": None}, {"role": None, "content": None}]
    assert (row["ids"], row["logprobs"], row["token_versions"], row["segments"]) == (None, None, None, None)


def test_the_page_lists_the_columns_as_they_are() -> None:
    assert columns_table() in DOCS.read_text()
