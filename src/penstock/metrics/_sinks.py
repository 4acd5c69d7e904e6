"""Where metrics go."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec

from penstock.errors import CorruptError, StoreError, StoreFullError


@dataclass(frozen=True, slots=True, kw_only=True)
class Emission:
    """What was emitted at once."""

    step: int
    time: float
    """Seconds since 1970."""
    values: Mapping[str, float] = field(default_factory=dict)


class Sink(Protocol):
    """Takes emissions and keeps them somewhere."""

    def write(self, emission: Emission) -> None:
        """Keep it before returning."""

    def close(self) -> None:
        """Nothing is written after this."""


class MemorySink:
    """Keeps emissions in `emissions`."""

    def __init__(self) -> None:
        self.emissions: list[Emission] = []

    def write(self, emission: Emission) -> None:
        """Append to `emissions`."""
        self.emissions.append(emission)

    def close(self) -> None:
        """Do nothing."""


class JsonlSink:
    """Appends one JSON object a line to a file, which any number of processes may do at once.

    A line is there whole or not at all: they take turns, and what a killed writer left of its last line is cut off by the next.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        with self._turn():
            pass

    def write(self, emission: Emission) -> None:
        """Append a line. Raises `StoreError` if the disk does not take it; the file then ends where it ended before."""
        line = msgspec.json.encode({"step": emission.step, "time": emission.time, **emission.values}) + b"\n"
        with self._turn() as end:
            try:
                if os.write(self._file, line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError as error:
                os.ftruncate(self._file, end)
                kind = StoreFullError if error.errno in (errno.ENOSPC, errno.EDQUOT) else StoreError
                raise kind(f"metrics cannot be written to {self._path.name}: {error.strerror}") from error

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    @contextmanager
    def _turn(self) -> Iterator[int]:
        """The file is ours meanwhile, and ends with a whole line; gives where."""
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            end = _end_of_last_line(self._file)
            if end != os.fstat(self._file).st_size:
                os.ftruncate(self._file, end)
            yield end
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)


def _end_of_last_line(file: int, block_bytes: int = 1 << 16) -> int:
    end = os.fstat(file).st_size
    if end == 0 or os.pread(file, 1, end - 1) == b"\n":
        return end
    while end:
        start = max(0, end - block_bytes)
        newline = os.pread(file, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a metrics file, from the first on. A torn last line is left out; any other that cannot be read raises `CorruptError`."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                yield msgspec.json.decode(line, type=dict[str, Any])
            except ValueError as error:
                raise CorruptError(f"line {number} of {path.name} is not a JSON object: {error}") from None
