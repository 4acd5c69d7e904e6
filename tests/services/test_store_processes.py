"""`SqliteStore` in processes that die, run out of room, or come from another time."""

from __future__ import annotations

import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from tests.services.store_stage import RUN, entry, group, member, payload, rollout
from tests.unit.buffer import archiving

from penstock.buffer.checks import check_store
from penstock.buffer.core import Buffer
from penstock.buffer.store import SqliteStore
from penstock.buffer.store._schema import SCHEMA
from penstock.errors import SchemaError, StoreError
from penstock.ledger import balance

OLD_STORES = Path(__file__).parent / "data"

# Writes change sets without waiting and says which are durable, until it is killed.
WRITER = """
import os, sys
from penstock.buffer.store import SqliteStore
from penstock.types import *

store = SqliteStore(sys.argv[1])
first = len(list(store.scan_groups("demo")))
for index in range(first, 1_000_000):
    body = (b"%d " % index) * (index % 700)
    future = store.submit([
        GroupRecord(
            run="demo", id=f"src/0/{index}", environment="e", problem_id="p", purpose=Purpose.TRAIN, size=1, seed=0, state=GroupState.OPEN, order=index
        ),
        MemberRecord(run="demo", group_id=f"src/0/{index}", member=0),
        Payload(run="demo", uid=f"u{index}", content_type="json", body=body, digest=""),
        JournalEntry(run="demo", episode="e", index=index, body=body[:50]),
    ])
    future.add_done_callback(lambda done, index=index: os.write(1, b"%d\\n" % index) if done.exception() is None else None)
    if index % 64 == 0:
        future.result()
"""

# Fills its files up to a limit, hears of it, gets room again and goes on.
FILLER = """
import random, resource, sys
from penstock.buffer.store import SqliteStore
from penstock.errors import StoreError
from penstock.types import Payload

def payload(index):
    return Payload(run="demo", uid=f"u{index}", content_type="json", body=random.Random(index).randbytes(30_000), digest="")

def fill(kept):
    while (failure := store.submit([payload(kept)]).exception(30)) is None:
        kept += 1
    assert isinstance(failure, StoreError), failure
    assert isinstance(store.submit([payload(999)]).exception(30), StoreError)
    assert all(store.payload("demo", f"u{index}") == payload(index) for index in range(kept))
    return kept

store = SqliteStore(sys.argv[1])
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
kept = fill(0)
try:
    # Reopening empties the log into the tables, so there may be room for a few more.
    store.reopen()
    kept = fill(kept)
except StoreError:
    pass
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
store.reopen()
store.submit([payload(1000)]).result(30)
assert all(store.payload("demo", f"u{index}") == payload(index) for index in (*range(kept), 1000))
store.close()
print(kept)
"""


def test_what_a_killed_writer_acknowledged_is_there_byte_for_byte(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    for num_awaited in (1, 200, 700):
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        acknowledged = [int(process.stdout.readline()) for _ in range(num_awaited)]
        process.send_signal(signal.SIGKILL)
        acknowledged += [int(line) for line in process.stdout.read().splitlines(keepends=True) if line.endswith(b"\n")]
        process.stdout.close()
        process.wait()
        store = SqliteStore(path)
        kept = [found.order for found in store.scan_groups("demo")]
        assert kept == list(range(len(kept)))
        assert len(kept) > max(acknowledged)
        for index in kept:
            assert store.payload("demo", f"u{index}").body == (b"%d " % index) * (index % 700)
            assert len(store.members("demo", f"src/0/{index}")) == 1
        assert [event.index for event in store.journal("demo", "e")] == kept
        assert store.corrupt() == ()
        store.close()


def test_a_writer_without_room_refuses_and_goes_on_when_there_is_some(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    done = subprocess.run([sys.executable, "-c", FILLER, str(path)], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) >= 3


def test_a_second_process_that_wants_to_write_is_told_who_does(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    with pytest.raises(StoreError, match=f"is being written by process {process.pid}; stop it, or open the store read-only"):
        SqliteStore(path)
    tool = SqliteStore(path, read_only=True)
    assert tool.group("demo", "src/0/0") is not None
    tool.close()
    process.kill()
    process.stdout.close()
    process.wait()
    SqliteStore(path).close()


# Schemas


def test_a_store_of_an_older_schema_opens_with_all_it_holds(tmp_path: Path) -> None:
    path = _old_store(tmp_path)
    with pytest.raises(SchemaError, match="opened for writing"):
        SqliteStore(path, read_only=True)
    store = SqliteStore(path)
    records = [RUN, group(0), member(0, 0), rollout("u0", 0)]
    snapshot = store.load("demo")
    assert snapshot is not None
    assert [snapshot.run, *snapshot.groups, *snapshot.members, *snapshot.rollouts] == records
    assert store.payload("demo", "u0") == payload("u0", b"old bytes " * 3)
    assert store.journal("demo", "e0") == (entry("e0", 0),)
    store.submit([payload("u1", b"new bytes " * 1000)]).result(30)
    store.close()
    store = SqliteStore(path)
    assert store.payload("demo", "u1").body == b"new bytes " * 1000
    store.close()


def test_slots_that_an_older_schema_wrote_as_filled_count_beside_those_of_today(tmp_path: Path) -> None:
    path = _old_store(tmp_path, 5)
    store = SqliteStore(path)
    buffer = Buffer(store, iter(range(1000, 2000)).__next__)
    (before,) = balance(buffer.ledger(archiving.RUN))
    assert before.groups == {"dropped(too_few)": 1, "open": 1, "ready": 1, "spent": 1}
    assert before.members == {"accepted": 6, "failed(env_error)": 1, "pending": 1}
    archiving.write(buffer, archiving.rollout(2, 1))
    store.close()
    store = SqliteStore(path)
    (after,) = balance(Buffer(store, lambda: 2000.0).ledger(archiving.RUN))
    store.close()
    assert (after.groups["ready"], after.members) == (2, {"accepted": 7, "failed(env_error)": 1})
    assert not [sentence for finding in check_store(path)[archiving.RUN] for sentence in finding.broken]


def test_a_migration_that_cannot_finish_leaves_the_older_store_as_it_was(tmp_path: Path) -> None:
    path = _old_store(tmp_path)
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE quarantine (in_the_way)")
    connection.commit()
    connection.close()
    with pytest.raises(StoreError, match="quarantine"):
        SqliteStore(path)
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA user_version").fetchone() == (1,)
    assert "encoding" not in [column[1] for column in connection.execute("PRAGMA table_info(payloads)")]
    connection.close()


def test_a_store_of_a_newer_schema_is_refused_with_a_way_out_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    SqliteStore(path).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    before = path.read_bytes()
    for read_only in (False, True):
        with pytest.raises(SchemaError, match=re.escape(f"{path} has schema 99, this penstock reads up to {SCHEMA}; update penstock, or give another path")):
            SqliteStore(path, read_only=read_only)
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", ["a table of something else", "no database"])
def test_a_foreign_file_is_refused_and_left_alone(tmp_path: Path, content: str) -> None:
    path = tmp_path / "store.sqlite"
    if content == "no database":
        path.write_bytes(b"this is a letter to a friend, long enough to have a header " * 20)
    else:
        connection = sqlite3.connect(path)
        connection.execute("CREATE TABLE letters (text)")
        connection.close()
    before = path.read_bytes()
    for read_only in (False, True):
        with pytest.raises(StoreError, match=re.escape(str(path))):
            SqliteStore(path, read_only=read_only)
    assert path.read_bytes() == before


def _old_store(directory: Path, schema: int = 1) -> Path:
    """A file that an older schema wrote."""
    path = directory / "store.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript((OLD_STORES / f"store_schema_{schema}.sql").read_text(encoding="ascii"))
    connection.close()
    shutil.copy(path, directory / "backup.sqlite")
    return path
