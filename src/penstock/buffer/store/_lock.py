"""One writer per store: a lock on a file beside it, which the system lets go of when the process dies."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from penstock.errors import StoreError


class WriterLock:
    """Held from construction until `release`."""

    def __init__(self, store: Path) -> None:
        self._file = os.open(f"{store}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.pread(self._file, 20, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._file)
            raise StoreError(f"{store} is being written by process {owner}; stop it, or open the store read-only") from error
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        # The file stays: removing it would let two writers lock two different files of the same name.
        os.close(self._file)


def is_written(store: Path) -> bool:
    """Whether some process has the store open for writing now."""
    path = Path(f"{store}.lock")
    if not path.exists():
        return False
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
