"""A disk that loses what was not synced: append-only files whose fate in a crash is drawn from a seed.

Written bytes are seen by every reader at once and are safe only after `sync`. At a crash each file's unsynced writes are all lost, all kept, torn at
some byte, or kept and lost one by one, as a real disk with a cache may do. Bytes that were written when a sync failed stay in doubt for ever, even
if a later sync succeeds: that is how Linux behaves.
"""

from __future__ import annotations

import errno
import os
import random
from dataclasses import dataclass, field

Span = tuple[int, int]
"""First byte of a write and the first behind it."""


@dataclass(slots=True)
class _File:
    content: bytearray = field(default_factory=bytearray)
    unsynced: list[Span] = field(default_factory=list)
    doubtful: list[Span] = field(default_factory=list)
    """Written before a sync that failed."""


class FakeDisk:
    """Files by name. The switches may be set at any time; each makes calls fail with the `OSError` of a real disk."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._files: dict[str, _File] = {}
        self.free_bytes: int | None = None
        """Space left; None is without end. A write that does not fit is torn."""
        self.refuses_writes = False
        self.refuses_syncs = False

    def append(self, name: str, data: bytes) -> None:
        """Write at the end of a file, which is made if it is not there."""
        if self.refuses_writes:
            raise OSError(errno.EIO, os.strerror(errno.EIO), name)
        fitting = data if self.free_bytes is None else data[: self.free_bytes]
        file = self._files.setdefault(name, _File())
        start = len(file.content)
        file.content += fitting
        if fitting:
            file.unsynced.append((start, start + len(fitting)))
        if self.free_bytes is not None:
            self.free_bytes -= len(fitting)
        if len(fitting) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)

    def sync(self, name: str) -> None:
        """Make all that was written to a file safe."""
        file = self._files[name]
        if self.refuses_syncs:
            file.doubtful += file.unsynced
            file.unsynced = []
            raise OSError(errno.EIO, os.strerror(errno.EIO), name)
        file.unsynced = []

    def read(self, name: str) -> bytes:
        """The whole file as a process sees it; empty if there is none."""
        file = self._files.get(name)
        return b"" if file is None else bytes(file.content)

    def rename(self, old: str, new: str) -> None:
        """Put a file in the place of another, atomically and at once safe."""
        self.remove(new)
        self._files[new] = self._files.pop(old)

    def remove(self, name: str) -> None:
        """Delete a file if it is there."""
        file = self._files.pop(name, None)
        if file is not None and self.free_bytes is not None:
            self.free_bytes += len(file.content)

    def crash(self) -> None:
        """Lose power: what is not safe is decided by the seed."""
        for name in sorted(self._files):
            file = self._files[name]
            self._files[name] = _File(content=_survivors(file.content, self._kept(sorted(file.doubtful + file.unsynced))))

    def flip(self, name: str, offset: int) -> None:
        """Damage one bit of a byte that was thought to be safe."""
        self._files[name].content[offset] ^= 1 << self._random.randrange(8)

    def _kept(self, spans: list[Span]) -> list[tuple[Span, int]]:
        """For each span in doubt, how many of its bytes survive."""
        fate = self._random.choice(("lost", "kept", "torn", "reordered"))
        if fate == "torn":
            intact = self._random.randrange(len(spans) + 1)
            return [(span, _length(span) if index < intact else self._some(span) if index == intact else 0) for index, span in enumerate(spans)]
        if fate == "reordered":
            return [(span, self._random.choice((0, self._some(span), _length(span)))) for span in spans]
        return [(span, _length(span) if fate == "kept" else 0) for span in spans]

    def _some(self, span: Span) -> int:
        return self._random.randrange(_length(span) + 1)


def _length(span: Span) -> int:
    return span[1] - span[0]


def _survivors(content: bytearray, kept: list[tuple[Span, int]]) -> bytearray:
    """`content` with zeros for what was lost, and without what was lost at its end."""
    rest = bytearray(content)
    for (start, stop), num_bytes in kept:
        rest[start + num_bytes : stop] = bytes(stop - start - num_bytes)
    end = len(rest)
    for (start, stop), num_bytes in reversed(kept):
        if stop < end:
            break
        end = start + num_bytes
        if num_bytes:
            break
    return rest[:end]
