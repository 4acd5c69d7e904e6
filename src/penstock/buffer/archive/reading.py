"""Bytes out of archive files. The store asks here for payloads that have moved."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from pathlib import Path
from typing import Any

from penstock.buffer.archive.files import find_file
from penstock.errors import ArchiveError, CorruptError, UnknownError
from penstock.types import Moved, Payload
from penstock.wire import digest

CACHED_BYTES = 64 << 20
"""Bytes of row groups that are held for the next reader: groups are read whole, and their rollouts lie beside each other."""

_COLUMNS = ["uid", "body", "annotations.list.element.uid", "annotations.list.element.body"]
_Place = tuple[str, int]
"""A file and one of its row groups."""


class ArchiveReader:
    """Reads the archive of the store in `store_directory`. May be called from several threads."""

    def __init__(self, store_directory: Path) -> None:
        self._directory = store_directory
        self._lock = threading.Lock()
        self._first_rows: dict[str, tuple[int, ...]] = {}
        """Of each row group, by file."""
        self._held: OrderedDict[_Place, dict[str, bytes]] = OrderedDict()
        self._held_bytes = 0

    def payload(self, moved: Moved) -> Payload:
        """The bytes that `moved` points to. Raises `UnknownError` if the file is not there, `CorruptError` if it does not hold them."""
        with self._lock:
            body = self._bodies(moved).get(moved.uid)
        if body is None:
            raise CorruptError(f"row {moved.row} of the archive file {moved.file} is not that of {moved.uid!r}")
        if digest(body) != moved.digest:
            raise CorruptError(f"{moved.uid!r} in row {moved.row} of the archive file {moved.file} is not what was stored (digest {moved.digest})")
        return Payload(run=moved.run, uid=moved.uid, content_type=moved.content_type, body=body, digest=moved.digest)

    def _bodies(self, moved: Moved) -> dict[str, bytes]:
        """Everything in the row group where `moved` is, by uid."""
        try:
            return self._read(moved)
        except FileNotFoundError:
            # It got its own name just now.
            return self._read(moved)
        except OSError as error:
            raise ArchiveError(f"the archive file {moved.file} cannot be read: {error.strerror or error}") from error

    def _read(self, moved: Moved) -> dict[str, bytes]:
        path = find_file(self._directory, moved.file)
        if path is None:
            raise UnknownError(f"there is no archive file {moved.file}")
        arrow, parquet = load_parquet()
        # Looked at anew each time: a file that was exchanged must not be served from what was remembered of it.
        found = path.stat()
        stamp = f"{moved.file} {found.st_mtime_ns} {found.st_size}"
        try:
            if stamp not in self._first_rows:
                self._first_rows[stamp] = _first_rows(parquet.ParquetFile(path).metadata)
            place = (stamp, bisect_right(self._first_rows[stamp], moved.row) - 1)
            if place not in self._held:
                self._hold(place, _bodies_of(parquet.ParquetFile(path).read_row_group(place[1], columns=_COLUMNS)))
        except (arrow.ArrowException, OSError, ValueError, ArithmeticError, IndexError, MemoryError) as error:
            # The disk gives a number with what it refuses. All else is about what the file says.
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise CorruptError(f"the archive file {moved.file} is damaged: {next(iter(str(error).splitlines()), type(error).__name__)}") from None
        self._held.move_to_end(place)
        return self._held[place]

    def _hold(self, place: _Place, bodies: dict[str, bytes]) -> None:
        self._held[place] = bodies
        self._held_bytes += _size(bodies)
        while self._held_bytes > CACHED_BYTES and len(self._held) > 1:
            self._held_bytes -= _size(self._held.popitem(last=False)[1])


def load_parquet() -> tuple[Any, Any]:
    """`pyarrow` and `pyarrow.parquet`. Raises `ArchiveError` with the way out if they are not installed."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ArchiveError("the bytes are in an archive file, and reading it needs pyarrow: pip install 'penstock[archive]'") from None
    return pyarrow, parquet


def _first_rows(metadata: Any) -> tuple[int, ...]:
    firsts, row = [], 0
    for number in range(metadata.num_row_groups):
        firsts.append(row)
        row += metadata.row_group(number).num_rows
    return tuple(firsts)


def _bodies_of(table: Any) -> dict[str, bytes]:
    bodies: dict[str, bytes] = dict(zip(table.column("uid").to_pylist(), table.column("body").to_pylist(), strict=True))
    for annotated in table.column("annotations").to_pylist():
        bodies.update((found["uid"], found["body"]) for found in annotated or ())
    return bodies


def _size(bodies: dict[str, bytes]) -> int:
    return sum(len(body) for body in bodies.values())
