"""Checks of the archive: is every file that bytes have moved to there, and as it was written."""

from __future__ import annotations

from pathlib import Path

from penstock.buffer.archive.files import file_digest, find_file
from penstock.buffer.checks.findings import Held, Looked
from penstock.types import ArchiveFile


def archived(held: Held, store_directory: Path) -> Looked:
    """Every file that was not retired, down to the last byte. That its rows hold what was accepted is `stored`'s to tell."""
    files = held.buffer.store.archive_files(held.run)
    standing = [file for file in files if file.retired_at is None]
    broken = [sentence for file in standing if (sentence := _wrong_file(file, store_directory)) is not None]
    if [file.number for file in files] != list(range(len(files))):
        broken.append(f"archive files are missing on record: there are {len(files)}, the last is number {files[-1].number}")
    retired = f", {len(files) - len(standing)} retired" if len(files) > len(standing) else ""
    return f"{len(standing)} archive files with {sum(file.rows for file in standing)} rollouts{retired}", broken


def _wrong_file(file: ArchiveFile, store_directory: Path) -> str | None:
    path = find_file(store_directory, file.name)
    if path is None:
        return f"the archive file {file.name} with {file.rows} rollouts is not there"
    if path.stat().st_size != file.size_bytes or file_digest(path) != file.digest:
        return f"the archive file {file.name} is not as it was written (digest {file.digest})"
    return None
