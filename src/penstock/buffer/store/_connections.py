"""Connections to the file: one that writes, and as many that read as there are threads reading at once."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from penstock.buffer.store import _schema
from penstock.buffer.store._failures import store_error
from penstock.errors import SchemaError, StoreError

_PAGE_BYTES = 4096
_CHECKPOINT_PAGES = 4096
"""The log is moved into the tables once it has so many pages: less often costs fewer syncs, more often a shorter log to read at the start."""
_BUSY_SECONDS = 30.0

# Without these the module looks for somebody who would turn bytes and None into something else, in vain, for half a microsecond each: a sixth of an insert.
sqlite3.register_adapter(bytes, bytes)
sqlite3.register_adapter(type(None), {None: None}.get)

# A flipped byte may leave text that is no UTF-8. It must come out as something, so that the row can be found to be damaged.
_lenient = partial(str, encoding="utf-8", errors="surrogateescape")


def open_for_writing(path: Path, max_bytes: int | None) -> sqlite3.Connection:
    """A connection whose commits are on disk when they return; today's tables are there. The caller holds the lock."""
    connection = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        # Before anything is written, so that a foreign file is left as it is.
        _schema.check(connection, path)
        connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StoreError(f"{path}: the file system does not allow a write-ahead log (journal mode {mode!r}); put the store on a local disk")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA fullfsync = 1")
        # Some builds overwrite what is deleted with zeros, page by page through the log. What goes to the archive is no secret from those who have the disk.
        connection.execute("PRAGMA secure_delete = FAST")
        connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
        # After a failed sync the system may take lost pages of the log for written. Moving all of it into the tables writes them afresh,
        # and no later commit then stands behind a hole.
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        _schema.prepare(connection, path)
        if max_bytes is not None:
            connection.execute(f"PRAGMA max_page_count = {max(1, max_bytes // _PAGE_BYTES)}")
        connection.execute("UPDATE probes SET count = count + 1")
    except BaseException:
        connection.close()
        raise
    _sync_directory(path.parent)
    return connection


class ReaderPool:
    """Read-only connections, made when needed and kept for the next reader."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._idle: list[sqlite3.Connection] = []
        self._generation = 0

    @contextmanager
    def connection(self) -> Iterator[sqlite3.Connection]:
        """A connection of one's own. What SQLite raises inside comes out as a `StoreError`."""
        with self._lock:
            connection = self._idle.pop() if self._idle else None
            generation = self._generation
        try:
            if connection is None:
                connection = _open_for_reading(self._path)
            yield connection
        except (sqlite3.Error, OSError) as error:
            raise store_error(error, self._path) from error
        finally:
            if connection is not None:
                self._put_back(connection, generation)

    def close(self) -> None:
        """Close what is idle; what is in use is closed when it comes back."""
        with self._lock:
            idle, self._idle = self._idle, []
            self._generation += 1
        for connection in idle:
            connection.close()

    def _put_back(self, connection: sqlite3.Connection, generation: int) -> None:
        with self._lock:
            if generation == self._generation:
                self._idle.append(connection)
                return
        connection.close()


def _open_for_reading(path: Path) -> sqlite3.Connection:
    if not path.is_file():
        raise StoreError(f"there is no store at {path}")
    connection = _connect_read_only(path, "mode=ro")
    try:
        version = _schema.check(connection, path)
    except sqlite3.OperationalError:
        connection.close()
        # A log cannot be opened in a directory that may not be written. Without a log there is nobody writing, and the file is all there is.
        if Path(f"{path}-wal").exists():
            raise
        connection = _connect_read_only(path, "mode=ro&immutable=1")
        version = _schema.check(connection, path)
    if version == 0:
        connection.close()
        raise StoreError(f"{path} is empty: nothing was ever stored in it, or what was is lost")
    if version != _schema.SCHEMA:
        connection.close()
        raise SchemaError(f"{path} has schema {version} and can be read once it was opened for writing, which brings it to {_schema.SCHEMA}")
    return connection


def _connect_read_only(path: Path, options: str) -> sqlite3.Connection:
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?{options}", uri=True, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    connection.text_factory = _lenient
    return connection


def _sync_directory(directory: Path) -> None:
    """Make the names of new files durable."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
