"""Archive files on disk.

A file is written and synced under a hidden name (`.demo.00000004.parquet.part`). Then the store commits, in one transaction, that it exists and that the bytes
in it need not be kept any more; then it gets its own name. So what can be seen is complete and on record, and killed anywhere nothing is lost or there
twice: a hidden file that the store knows is renamed by the next life, one that it does not know is removed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import xxhash

from penstock.buffer.archive.rows import Row
from penstock.buffer.archive.schema import arrow_schema
from penstock.buffer.archive.tables import table_of
from penstock.types import ArchiveFile

ROW_GROUP_ROWS = 128
ROW_GROUP_BYTES = 4 << 20
"""A row group is closed at so many rows or accepted bytes: reading one rollout reads its row group."""
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A file that is complete and hidden."""

    path: Path
    """What it will be called."""
    digest: str
    size_bytes: int
    rows: int


def file_path(directory: Path, run: str, number: int) -> Path:
    """Name of the next file of a run; never one that is there.

    >>> file_path(Path("archive"), "team/demo", 4).name
    'team%2Fdemo.00000004.parquet'
    """
    name = f"{quote(run, safe='')}.{number:08d}"
    path, others = directory / f"{name}.parquet", 0
    # Left by another store that used the same directory.
    while path.exists():
        others += 1
        path = directory / f"{name}-{others}.parquet"
    return path


def write_file(path: Path, rows: Iterable[Row]) -> Written:
    """Write `rows`, in order, to the hidden file of `path`. Durable when this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = hidden_path(path)
    count = _write_rows(hidden, rows)
    _sync(hidden)
    _sync(path.parent)
    return Written(path=path, digest=file_digest(hidden), size_bytes=hidden.stat().st_size, rows=count)


def show_file(path: Path) -> None:
    """Give a hidden file its own name. Again is fine."""
    hidden = hidden_path(path)
    if hidden.exists():
        hidden.rename(path)
        _sync(path.parent)


def remove_file(path: Path) -> None:
    """Delete a file, whichever name it has. Again is fine."""
    for name in (path, hidden_path(path)):
        name.unlink(missing_ok=True)


def find_file(store_directory: Path, name: str) -> Path | None:
    """A registered file, under its own name or still hidden; None if it is not there."""
    path = store_directory / name
    # Its own name once more: it may have got it between the first two looks.
    return next((found for found in (path, hidden_path(path), path) if found.is_file()), None)


def tidy(store_directory: Path, archive_directory: Path, files: Sequence[ArchiveFile]) -> None:
    """Finish what a killed life has begun: `files` are all that the store knows, of all its runs."""
    for file in files:
        path = store_directory / file.name
        if file.retired_at is None:
            show_file(path)
        else:
            remove_file(path)
    for hidden in archive_directory.glob(".*.parquet.part"):
        hidden.unlink()


def hidden_path(path: Path) -> Path:
    """What a file is called until the store knows it."""
    return path.with_name(f".{path.name}.part")


def file_digest(path: Path) -> str:
    """xxh3-128 in hex of a whole file."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while piece := file.read(_READ_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def _write_rows(path: Path, rows: Iterable[Row]) -> int:
    from pyarrow import parquet

    count, pending, pending_bytes = 0, [], 0
    with parquet.ParquetWriter(path, arrow_schema(), compression="zstd") as writer:
        for row in rows:
            pending.append(row)
            pending_bytes += len(row["body"])
            count += 1
            if len(pending) >= ROW_GROUP_ROWS or pending_bytes >= ROW_GROUP_BYTES:
                writer.write_table(table_of(pending))
                pending, pending_bytes = [], 0
        if pending:
            writer.write_table(table_of(pending))
    return count


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
