"""Bytes out of archive files. The store asks here for payloads that have moved."""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

from penstock.buffer.archive.files import find_file
from penstock.errors import CorruptError, StoreError, UnknownError
from penstock.types import Moved, Payload
from penstock.wire import digest

CACHED_BYTES = 64 << 20
"""Bytes of row groups that are held for the next reader: groups are read whole, and their rollouts lie beside each other."""

_Place = tuple[str, int]
"""A file and one of its row groups."""


class ArchiveReader:
    """Reads the archive of the store in `store_directory`. May be called from several threads."""

    def __init__(self, store_directory: Path) -> None:
        self._directory = store_directory
        self._lock = threading.Lock()
        self._files: dict[str, tuple[Path, tuple[int, ...]]] = {}
        """For each file, where it is and the first row of each row group."""
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
        path = find_file(self._directory, moved.file)
        if path is None:
            raise UnknownError(f"there is no archive file {moved.file}")
        try:
            return self._opened(path, moved)
        except OSError as error:
            raise StoreError(f"the archive file {moved.file} cannot be read: {error.strerror or error}") from error

    def _opened(self, path: Path, moved: Moved) -> dict[str, bytes]:
        arrow, parquet = load_parquet()
        try:
            # Looked at anew each time: a file that was exchanged must not be served from what was remembered of it.
            stamp = f"{moved.file} {path.stat().st_mtime_ns} {path.stat().st_size}"
            if stamp not in self._files:
                self._files[stamp] = (path, _first_rows(parquet.ParquetFile(path).metadata))
            firsts = self._files[stamp][1]
            number = sum(first <= moved.row for first in firsts) - 1
            held = self._held.get((stamp, number))
            if held is None:
                held = _bodies_of(parquet.ParquetFile(path).read_row_group(number, columns=["uid", "body", "annotations"]))
                self._hold((stamp, number), held)
            self._held.move_to_end((stamp, number))
            return held
        except (arrow.ArrowException, IndexError) as error:
            raise CorruptError(f"the archive file {moved.file} is damaged: {str(error).splitlines()[0]}") from None

    def _hold(self, place: _Place, bodies: dict[str, bytes]) -> None:
        self._held[place] = bodies
        self._held_bytes += _size(bodies)
        while self._held_bytes > CACHED_BYTES and len(self._held) > 1:
            self._held_bytes -= _size(self._held.popitem(last=False)[1])


def load_parquet() -> tuple[Any, Any]:
    """`pyarrow` and `pyarrow.parquet`. Raises `StoreError` with the way out if they are not installed."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise StoreError("the bytes are in an archive file, and reading it needs pyarrow: pip install 'penstock[archive]'") from None
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
        bodies.update((found["uid"], found["body"]) for found in annotated)
    return bodies


def _size(bodies: dict[str, bytes]) -> int:
    return sum(len(body) for body in bodies.values())
