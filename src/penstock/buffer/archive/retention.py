"""Which archive files may be deleted. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.buffer.archive.config import ArchiveConfig
from penstock.types import ArchiveFile


def to_retire(files: Iterable[ArchiveFile], config: ArchiveConfig, *, oldest_checkpoint: int | None, now: float) -> tuple[ArchiveFile, ...]:
    """Files that are too old, and the oldest of those that are too much, as far as nobody can need them.

    A run can be replayed from its oldest kept checkpoint `update_N` on, so a file with a group of update N or later stays, whatever its age. While no
    checkpoint is kept (None), every planned group is needed.
    """
    standing = [file for file in sorted(files, key=lambda file: file.number) if file.retired_at is None]
    free = [file for file in standing if _is_free(file, oldest_checkpoint)]
    retired = {file.name for file in free if config.keep_seconds is not None and now - file.newest_ended_at > config.keep_seconds}
    size_bytes = sum(file.size_bytes for file in standing if file.name not in retired)
    for file in free:
        if config.keep_bytes is not None and size_bytes > config.keep_bytes and file.name not in retired:
            retired.add(file.name)
            size_bytes -= file.size_bytes
    return tuple(file for file in free if file.name in retired)


def _is_free(file: ArchiveFile, oldest_checkpoint: int | None) -> bool:
    return file.newest_update is None or (oldest_checkpoint is not None and file.newest_update < oldest_checkpoint)
