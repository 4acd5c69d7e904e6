"""The end of a log file, and what is added to it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

_BLOCK_BYTES = 64 * 1024
_LAST_WORDS = re.compile(r"(?:penstock|\S+ \S+ (?:ERROR|CRITICAL) [\w.]+): (.+)")
_MOST_WORDS = 300


def last_lines(path: Path, count: int) -> list[str]:
    """The last `count` lines of a file; empty if it does not exist. Reads from the end, so that a large log costs nothing."""
    if not path.exists() or count < 1:
        return []
    with path.open("rb") as file:
        position = end = file.seek(0, os.SEEK_END)
        body = b""
        while position > 0 and body.count(b"\n") <= count:
            position = max(0, position - _BLOCK_BYTES)
            file.seek(position)
            body = file.read(end - position) + body
            end = position
    return body.decode(errors="replace").splitlines()[-count:]


def last_words(path: Path) -> str:
    """Why a process ended, in its own words: the last line of its log, if it is the sentence that a verb ends with, or an error; else empty."""
    found = _LAST_WORDS.fullmatch("".join(last_lines(path, 1)))
    return "" if found is None else "".join(letter if letter.isprintable() else "?" for letter in found[1][:_MOST_WORDS])


def follow(path: Path, is_over: Callable[[], bool], *, poll_seconds: float = 0.2) -> Iterator[str]:
    """What is added to a file from now on, piece by piece, until `is_over` and everything was read."""
    with path.open("rb") as file:
        file.seek(0, os.SEEK_END)
        while True:
            # Asked before reading: what was written before the end is still given.
            over = is_over()
            piece = file.read()
            if piece:
                yield piece.decode(errors="replace")
            elif over:
                return
            else:
                time.sleep(poll_seconds)
