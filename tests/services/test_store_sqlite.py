"""`SqliteStore` keeps the contract of a store, on a real file."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from tests.services.item_contract import ItemContract
from tests.services.store_contract import StoreContract
from tests.services.store_stage import ONE_OF_EACH, RUN, entry, group, item, member, outcome, payload, plan, rollout

from penstock.buffer.store import Bounds, SqliteStore, Store
from penstock.errors import CorruptError, InvalidError, InvariantError, LimitError, StoreError, StoreFullError, UnknownError
from penstock.types import ArrivedItem, GroupState, MemberState, Record, SpentGroups


class SqliteRig:
    def __init__(self, directory: Path) -> None:
        self.path = directory / "life-0" / "store.sqlite"

    def open(self) -> SqliteStore:
        return SqliteStore(self.path)

    def settle(self, store: Store) -> None:
        store.load("demo")

    @contextmanager
    def hold(self, store: Store) -> Iterator[None]:
        """Another connection has the right to write, so the store's own must wait."""
        held = self.path
        connection = sqlite3.connect(held, isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")
        connection.close()

    def crash(self, store: Store) -> None:
        """Go on with the files as a killed process leaves them. The old store lives on where nobody looks, until the test is over."""
        left = self.path.parent
        self.path = left.parent / f"life-{int(left.name.removeprefix('life-')) + 1}" / "store.sqlite"
        shutil.copytree(left, self.path.parent)

    def fill(self, store: Store) -> None:
        replace_log("/dev/full", self.path)

    def refuse_syncs(self, store: Store) -> None:
        replace_log("/dev/null", self.path)

    def heal(self) -> None:
        """A store that is reopened opens its files anew."""

    def flip(self, needle: bytes) -> None:
        content = self.path.read_bytes()
        flip_byte(self.path, content.index(needle))


def replace_log(device: str, path: Path) -> None:
    """Put a device behind the open log of the writing connection: /dev/full takes nothing, /dev/null takes bytes but no sync."""
    logs = [int(handle.name) for handle in Path("/proc/self/fd").iterdir() if os.path.realpath(handle) == f"{path}-wal"]
    target = os.open(device, os.O_RDWR)
    os.dup2(target, min(logs), inheritable=False)
    os.close(target)


def flip_byte(path: Path, offset: int, bit: int = 3) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1 << bit]))


@pytest.fixture
def rig(tmp_path: Path) -> SqliteRig:
    return SqliteRig(tmp_path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.sqlite"


class TestSqliteStore(StoreContract):
    pass


class TestSqliteStoreItems(ItemContract):
    pass


# The writer


def test_more_than_may_wait_is_over_the_limit_and_leaves_no_trace(rig: SqliteRig) -> None:
    store = SqliteStore(rig.path, bounds=Bounds(max_waiting=3, max_batch=1))
    with rig.hold(store):
        futures = [store.submit([group(index)]) for index in range(20)]
        refused = [index for index, future in enumerate(futures) if future.done()]
        assert len(refused) in (16, 17)
        assert all(isinstance(futures[index].exception(), LimitError) for index in refused)
        assert store.group("demo", f"src/0/{refused[0]}") is None
    rig.settle(store)
    assert [found.order for found in store.scan_groups("demo")] == [index for index in range(20) if index not in refused]
    store.close()


def test_bytes_that_wait_are_bounded_but_one_large_change_set_always_passes(rig: SqliteRig) -> None:
    store = SqliteStore(rig.path, bounds=Bounds(max_waiting_bytes=1000, max_batch=1))
    store.submit([payload("large", b"x" * 50_000)]).result(30)
    with rig.hold(store):
        futures = [store.submit([payload(f"u{index}", b"x" * 600)]) for index in range(6)]
        assert isinstance(futures[-1].exception(10), LimitError)
    rig.settle(store)
    assert store.payload("demo", "u0").body == b"x" * 600
    store.close()


def test_futures_are_resolved_in_the_order_of_submission(path: Path) -> None:
    store = SqliteStore(path, bounds=Bounds(max_batch=7))
    order: list[int] = []
    for index in range(100):
        store.submit([group(index)]).add_done_callback(lambda _, index=index: order.append(index))
    store.close()
    assert order == list(range(100))


def test_many_threads_may_write_and_look_up_at_once(path: Path) -> None:
    store = SqliteStore(path)

    def life(worker: int) -> None:
        for index in range(worker * 100, worker * 100 + 30):
            future = store.submit([group(index), member(index, 0), payload(f"u{index}", b"%d" % index)])
            assert store.group("demo", f"src/0/{index}") == group(index)
            assert store.payload("demo", f"u{index}").body == b"%d" % index
            if index % 10 == 0:
                future.result(30)
                assert store.members("demo", f"src/0/{index}") == (member(index, 0),)

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(life, range(8))) == [None] * 8
    store.close()
    store = SqliteStore(path)
    assert len(list(store.scan_groups("demo"))) == 240
    store.close()


def test_a_number_beyond_what_sqlite_keeps_fails_alone(path: Path) -> None:
    store = SqliteStore(path)
    futures = [store.submit([group(0)]), store.submit([group(1, order=1 << 63)]), store.submit([group(2)])]
    assert [type(future.exception(30)) for future in futures] == [type(None), InvalidError, type(None)]
    store.close()


@pytest.mark.parametrize("record", [group(1, order=np.int64(1)), group(1, order=True), entry("e", np.int64(0))], ids=["numpy", "bool", "journal"])
def test_a_column_that_could_not_be_read_again_is_refused_before_anything_waits(path: Path, record: Record) -> None:
    store = SqliteStore(path)
    refused = store.submit([RUN, record])
    assert refused.done()
    with pytest.raises(InvariantError, match=r"must be an int, a str, a float or None, got the (int64|bool)"):
        refused.result()
    assert store.runs() == ()
    store.submit([RUN, group(0)]).result(5)
    store.close()


def test_a_closed_store_is_not_reopened_beside_another_writer(path: Path) -> None:
    store = SqliteStore(path)
    store.close()
    with pytest.raises(StoreError, match="is closed"):
        store.reopen()
    SqliteStore(path).close()


def test_a_store_may_be_bounded_in_bytes_and_goes_on_when_the_bound_is_raised(path: Path) -> None:
    store = SqliteStore(path, max_bytes=400_000)
    failure, num_kept = None, 0
    while failure is None:
        failure = store.submit([payload(f"u{num_kept}", random.Random(num_kept).randbytes(20_000))]).exception(30)
        num_kept += failure is None
    assert isinstance(failure, StoreFullError)
    assert num_kept > 3
    assert all(len(store.payload("demo", f"u{index}").body) == 20_000 for index in range(num_kept))
    store.close()
    store = SqliteStore(path, max_bytes=4_000_000)
    assert store.submit([payload(f"u{num_kept}", b"fits")]).exception(30) is None
    assert all(store.payload("demo", f"u{index}").body == random.Random(index).randbytes(20_000) for index in range(num_kept))
    store.close()


# Payloads


def test_a_large_payload_is_compressed_where_it_shrinks_and_comes_back_byte_for_byte(path: Path) -> None:
    bodies = {"text": b"the same words again " * 1000, "noise": random.Random(0).randbytes(20_000), "small": b"x" * 4095}
    store = SqliteStore(path)
    for uid, body in bodies.items():
        store.submit([payload(uid, body)]).result(30)
    store.close()
    with sqlite3.connect(path) as connection:
        stored = dict(connection.execute("SELECT uid, encoding FROM payloads"))
        sizes = dict(connection.execute("SELECT uid, length(body) FROM payloads"))
    connection.close()
    assert stored == {"text": "zlib", "noise": "plain", "small": "plain"}
    assert sizes["text"] < 1000
    store = SqliteStore(path)
    assert {uid: store.payload("demo", uid).body for uid in bodies} == bodies
    store.close()


def test_a_change_of_state_does_not_rewrite_the_payload(path: Path) -> None:
    store = SqliteStore(path)
    noise = random.Random(0).randbytes(2_000_000)
    store.submit([group(0), member(0, 0), rollout("u", 0), payload("u", noise)]).result(30)
    store.reopen()  # moves the log into the tables and starts it afresh
    log = Path(f"{path}-wal")
    before = log.stat().st_size
    for state in (GroupState.COMPLETE, GroupState.READY, GroupState.BOUND):
        store.submit([group(0, state), member(0, 0, MemberState.ACCEPTED)]).result(30)
    assert log.stat().st_size - before < 100_000
    store.close()


# Other processes and tools


def test_a_second_writer_is_refused_in_one_line(path: Path) -> None:
    store = SqliteStore(path)
    with pytest.raises(StoreError) as refusal:
        SqliteStore(path)
    assert str(refusal.value) == f"{path} is being written by process {os.getpid()}; stop it, or open the store read-only"
    store.close()
    SqliteStore(path).close()


def test_a_tool_reads_while_the_writer_is_alive(path: Path) -> None:
    store = SqliteStore(path)
    store.submit(ONE_OF_EACH).result(30)
    tool = SqliteStore(path, read_only=True)
    assert tool.load("demo") == store.load("demo")
    store.submit([group(9)]).result(30)
    assert [found.order for found in tool.scan_groups("demo")] == [0, 9]
    with pytest.raises(StoreError, match="read-only"):
        tool.submit([group(1)]).result(0)
    tool.close()
    store.close()


def test_a_tool_reads_what_a_killed_or_a_closed_writer_left(rig: SqliteRig) -> None:
    store = rig.open()
    store.submit(ONE_OF_EACH).result(30)
    rig.crash(store)
    for _ in range(2):
        tool = SqliteStore(rig.path, read_only=True)
        assert tool.group("demo", "src/0/0") == ONE_OF_EACH[1]
        tool.close()
        rig.open().close()
    store.close()


def test_a_tool_reports_damage_and_changes_nothing(rig: SqliteRig) -> None:
    store = rig.open()
    store.submit([RUN, payload("u", b"needle")])
    store.close()
    rig.flip(b"needle")
    before = rig.path.read_bytes()
    tool = SqliteStore(rig.path, read_only=True)
    with pytest.raises(CorruptError):
        tool.payload("demo", "u")
    assert len(tool.corrupt()) == 1
    assert "read-only" in tool.corrupt()[0]
    tool.close()
    assert rig.path.read_bytes() == before


def test_there_is_nothing_to_read_where_there_is_no_store(path: Path) -> None:
    with pytest.raises(StoreError, match="there is no store at"):
        SqliteStore(path, read_only=True)
    assert not path.exists()


def test_a_path_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="cannot be used"):
        SqliteStore(tmp_path / "file" / "store.sqlite")


# Damage


def test_the_bytes_of_a_damaged_record_are_kept_in_quarantine(rig: SqliteRig) -> None:
    store = rig.open()
    store.submit([RUN, group(0, problem_id="needle")])
    store.close()
    rig.flip(b"needle")
    store = rig.open()
    with pytest.raises(CorruptError):
        store.group("demo", "src/0/0")
    store.close()
    with sqlite3.connect(rig.path) as connection:
        ((kind, run, key, body),) = connection.execute("SELECT kind, run, key, body FROM quarantine")
    connection.close()
    assert (kind, run, key) == ("group", "demo", "src/0/0")
    assert b"eedle" in body
    store = rig.open()
    assert len(store.corrupt()) == 1, "whoever opens it later knows at once"
    store.close()


def test_a_damaged_name_is_told_in_text_that_can_be_shown_and_kept(path: Path) -> None:
    store = SqliteStore(path)
    store.submit([RUN, group(0), group(1)])
    store.close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE groups SET id = CAST(x'41FF' AS TEXT) WHERE id = 'src/0/0'")
    connection.close()
    store = SqliteStore(path)
    assert [found.order for found in store.scan_groups("demo")] == [1]
    (sentence,) = store.corrupt()
    assert sentence.encode()
    store.close()
    with sqlite3.connect(path) as connection:
        assert [key.encode()[:1] for (key,) in connection.execute("SELECT key FROM quarantine")] == [b"A"]
    connection.close()


@pytest.mark.parametrize("column", ["state", "environment", "ord"])
def test_a_column_that_does_not_follow_from_its_record_is_not_believed(path: Path, column: str) -> None:
    store = SqliteStore(path)
    store.submit([RUN, group(0), group(1)])
    store.close()
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(f"UPDATE groups SET {column} = CASE '{column}' WHEN 'state' THEN 'ready' WHEN 'ord' THEN 7 ELSE 'other' END WHERE id = 'src/0/0'")
    connection.close()
    store = SqliteStore(path)
    with pytest.raises(CorruptError, match="columns that are not its own"):
        store.group("demo", "src/0/0")
    snapshot = store.load("demo")
    assert snapshot is not None
    assert snapshot.groups == (group(1),)
    store.close()


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        ("spent = CAST(replace(CAST(spent AS TEXT), 'read-1', 'read-2') AS BLOB)", "checksum"),
        ("spent = 'read-1'", "checksum"),
        ("spent = NULL", "columns that are not its own"),
        ("state = 'ready'", "columns that are not its own"),
        ("to_archive = NULL", "columns that are not its own"),
        ("body = x'00'", "checksum"),
    ],
)
def test_a_group_that_a_read_took_is_checked_as_any_other(path: Path, damage: str, sentence: str) -> None:
    ready = [group(index, GroupState.READY, ready_order=index) for index in range(2)]
    store = SqliteStore(path)
    store.submit([RUN, *ready])
    store.submit([SpentGroups(run="demo", lease="read-1", spent_at=2.5, groups=tuple(ready))])
    store.close()
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(f"UPDATE groups SET {damage} WHERE id = 'src/0/0'")
    connection.close()
    store = SqliteStore(path)
    with pytest.raises(CorruptError, match=sentence):
        store.group("demo", "src/0/0")
    assert [found.id for found in store.scan_groups("demo")] == ["src/0/1"]
    store.close()


def test_a_group_that_is_not_ready_cannot_be_taken(path: Path) -> None:
    store = SqliteStore(path)
    store.submit([RUN, group(0), group(1, GroupState.READY)])
    refused = store.submit([SpentGroups(run="demo", lease="read-1", spent_at=2.5, groups=(group(0), group(1)))])
    with pytest.raises(InvariantError, match="not there"):
        refused.result(timeout=30)
    assert [found.state for found in store.scan_groups("demo")] == [GroupState.OPEN, GroupState.READY]
    store.close()


def test_a_byte_flipped_anywhere_never_makes_a_wrong_record(tmp_path: Path) -> None:
    written = tmp_path / "written.sqlite"
    store = SqliteStore(written)
    groups = [group(index, problem_id=f"problem-{index}") for index in range(20)]
    members = [member(index, 0, session=f"session-{index}") for index in range(20)]
    payloads = [payload(f"u{index}", random.Random(index).randbytes(1500)) for index in range(20)]
    entries = [entry("e", index, b"%d" % index * 50) for index in range(20)]
    items = [item(f"i{index}", index, index, body=random.Random(100 + index).randbytes(1500)) for index in range(20)]
    store.submit([RUN, *groups, *members, *payloads, *entries, *items, *(plan(index) for index in range(5)), *(outcome(index) for index in range(5))])
    store.close()
    rng = random.Random(11)
    path = tmp_path / "flipped.sqlite"
    num_noticed = 0
    for _ in range(120):
        shutil.copy(written, path)
        flip_byte(path, rng.randrange(path.stat().st_size), rng.randrange(8))
        num_noticed += _reads_truly(path, groups, members, payloads, entries, items)
    assert num_noticed > 10


def _reads_truly(path: Path, groups: list[object], members: list[object], payloads: list[object], entries: list[object], items: list[ArrivedItem]) -> bool:
    """Whether damage was noticed; everything that is served must be as it was written."""
    try:
        store = SqliteStore(path, read_only=True)
    except StoreError:
        return True
    num_served = 0
    for index in range(20):
        with suppress(StoreError):
            found = store.group("demo", f"src/0/{index}")
            assert found is None or found == groups[index]
            num_served += found is not None
        with suppress(StoreError):
            assert {*store.members("demo", f"src/0/{index}")} <= {members[index], items[index].slot}
        with suppress(StoreError):
            assert store.rollout("demo", f"i{index}") in (items[index].rollout, None)
        with suppress(StoreError, UnknownError):
            assert store.payload("demo", f"i{index}") == items[index].payload
        with suppress(StoreError, UnknownError):
            assert store.payload("demo", f"u{index}") == payloads[index]
    with suppress(StoreError):
        assert all(found == entries[found.index] for found in store.journal("demo", "e"))
    with suppress(StoreError):
        snapshot = store.load("demo")
        assert snapshot is None or all(found == groups[found.order] for found in snapshot.groups)
    noticed = bool(store.corrupt()) or num_served < 20
    store.close()
    return noticed
