"""Many rows in few statements.

SQLite's module lets other threads run around every statement and then waits for its turn again, which takes milliseconds while another thread is
busy. One statement for many rows waits once.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from functools import cache
from itertools import chain

from penstock.buffer.store._rows import Row

_SIZES = (512, 256, 128, 64, 32, 16, 8, 4, 2, 1)
"""Rows of one statement. Few sizes, so that each is compiled once."""


def write_rows(connection: sqlite3.Connection, statement: str, rows: Iterable[Row]) -> int:
    """Run `statement`, which has the values of one row as `(?, ?, ...)`, for all of `rows`; how many rows that changed."""
    waiting = list(rows)
    written = start = 0
    for size in _SIZES:
        while len(waiting) - start >= size:
            values = tuple(chain.from_iterable(waiting[start : start + size]))
            written += connection.execute(_for_rows(statement, len(waiting[start]), size), values).rowcount
            start += size
    return written


@cache
def _for_rows(statement: str, num_columns: int, num_rows: int) -> str:
    one = f"({', '.join('?' * num_columns)})"
    assert statement.count(one) == 1, "the statement must name the values of one row, once"
    return statement.replace(one, ", ".join([one] * num_rows))
