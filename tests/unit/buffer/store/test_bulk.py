"""Rows that are written many to a statement are all there, each once."""

from __future__ import annotations

import sqlite3

import pytest

from penstock.buffer.store._bulk import write_rows


# The last needs a statement of every size, and the largest twice.
@pytest.mark.parametrize("num_rows", [0, 1, 3, 64, 65, 512 + 1023])
def test_every_row_is_written_once_and_counted(num_rows: int) -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE rows (number INTEGER, word TEXT)")
    rows = [(number, f"word {number}") for number in range(num_rows)]
    assert write_rows(connection, "INSERT INTO rows (number, word) VALUES (?, ?)", iter(rows)) == num_rows
    assert connection.execute("SELECT number, word FROM rows ORDER BY rowid").fetchall() == rows
    connection.close()
