"""What an error of SQLite or of the system means to a caller of the store."""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path

from penstock.errors import CorruptError, StoreError, StoreFullError

_PRIMARY_CODE = 0xFF
"""SQLite puts details of an error into the higher bits."""


def store_error(error: Exception, path: Path) -> StoreError:
    """The failure to report for `error`: no space, damage, or a disk that refuses."""
    if isinstance(error, StoreError):
        return error
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", 0) & _PRIMARY_CODE
        if code == sqlite3.SQLITE_FULL:
            return StoreFullError(f"no space left for {path}: {error}; free some and reopen the store")
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return CorruptError(f"{path} is damaged: {error}; what can still be read may be copied out with `sqlite3 {path.name} .recover`")
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreFullError(f"no space left for {path}: {error.strerror}; free some and reopen the store")
    return StoreError(f"{path} cannot be used: {type(error).__name__}: {error}")
