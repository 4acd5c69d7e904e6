"""Bytes as they were accepted, and where they are now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.types.frozen import quickly_made


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """Bytes as they were accepted. Never rewritten."""

    run: str
    uid: str
    content_type: Literal["json", "msgpack"]
    body: bytes
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveFile:
    """A Parquet file with the rollouts of ended groups. It exists for readers once this record is durable, together with the `Moved` of each of its bytes."""

    run: str
    name: str
    """Path of the file from the directory of the store."""
    number: int
    """From 0, without gaps."""
    digest: str
    """xxh3-128 in hex of the whole file."""
    size_bytes: int
    rows: int
    """Rollouts in it."""
    groups: int
    newest_update: int | None = None
    """Last update that a group in it was planned for; None if there is none."""
    newest_ended_at: float = 0.0
    """When the last of its groups ended."""
    written_at: float = 0.0
    retired_at: float | None = None
    """When retention gave it up: the file is gone, the records of its rollouts stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """The bytes of a stored payload are in an archive file now, and need not be kept here."""

    run: str
    uid: str
    content_type: Literal["json", "msgpack"]
    digest: str
    file: str
    """Name of the `ArchiveFile`."""
    row: int
    """Of the rollout in the file, from 0; an annotation is in the row of its rollout."""


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """One event of an episode that is still going on: appended once, read in order, so that the episode can continue elsewhere."""

    run: str
    episode: str
    index: int
    """From 0, without gaps. The same index with the same body again changes nothing."""
    body: bytes
