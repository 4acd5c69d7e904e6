"""How far a generator is: a bar on a terminal, a line from time to time in a log."""

from __future__ import annotations

import sys
import time
from typing import TextIO

BAR_CHARACTERS = 30
BAR_SECONDS = 0.1
LINE_SECONDS = 10.0


class Progress:
    """Counts rollouts. Use as a context manager: the end is always shown."""

    def __init__(self, total: int, name: str, *, stream: TextIO | None = None) -> None:
        self._total = total
        self._name = name
        self._stream = stream or sys.stderr
        self._is_terminal = self._stream.isatty()
        self._start = self._shown_at = time.monotonic()
        self._done = self._failed = 0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._show("\n")

    def advance(self, *, failed: bool = False) -> None:
        """One more rollout is done."""
        self._done += 1
        self._failed += failed
        every_seconds = BAR_SECONDS if self._is_terminal else LINE_SECONDS
        if time.monotonic() - self._shown_at >= every_seconds:
            self._show("" if self._is_terminal else "\n")

    def line(self, seconds: float) -> str:
        """How it stands after so many seconds.

        >>> Progress(8, "math").line(2.0)
        'math: 0/8 rollouts, 0.0/s, 0 failed'
        """
        rate = self._done / seconds if seconds > 0 else 0.0
        return f"{self._name}: {self._done}/{self._total} rollouts, {rate:.1f}/s, {self._failed} failed"

    def _show(self, end: str) -> None:
        self._shown_at = time.monotonic()
        line = self.line(self._shown_at - self._start)
        if self._is_terminal:
            full = BAR_CHARACTERS * self._done // max(1, self._total)
            line = f"\r[{'#' * full}{' ' * (BAR_CHARACTERS - full)}] {line}"
        self._stream.write(line + end)
        self._stream.flush()
