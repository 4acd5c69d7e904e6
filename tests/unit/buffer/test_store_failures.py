from __future__ import annotations

import errno
import sqlite3
from pathlib import Path

import pytest

from penstock.buffer.store._failures import store_error
from penstock.errors import CorruptError, SchemaError, StoreError, StoreFullError

PATH = Path("buffer/store.sqlite")


def _sqlite_error(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("what SQLite said")
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (_sqlite_error(sqlite3.SQLITE_FULL), StoreFullError),
        (_sqlite_error(sqlite3.SQLITE_IOERR_FSYNC), StoreError),
        (_sqlite_error(sqlite3.SQLITE_CORRUPT_INDEX), CorruptError),
        (_sqlite_error(sqlite3.SQLITE_NOTADB), CorruptError),
        (OSError(errno.ENOSPC, "No space left on device"), StoreFullError),
        (OSError(errno.EROFS, "Read-only file system"), StoreError),
        (MemoryError(), StoreError),
    ],
)
def test_each_cause_has_its_failure_and_names_the_store(error: Exception, expected: type[StoreError]) -> None:
    failure = store_error(error, PATH)
    assert type(failure) is expected
    assert str(PATH) in str(failure)


def test_a_failure_that_has_a_name_keeps_it() -> None:
    failure = SchemaError("too new")
    assert store_error(failure, PATH) is failure
