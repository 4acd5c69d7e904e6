"""Tells a learner that hangs from one that is busy: by the term that it renews every two seconds while it trains. Pure."""

from __future__ import annotations

from penstock.process.identity import ProcessId

SILENT_SECONDS = 30.0
"""A learner that has renewed its term and then does not for so long hangs. As for servers, a busy machine must not be taken for that."""


class Renewals:
    """What was seen of a learner's term."""

    def __init__(self) -> None:
        self._process: ProcessId | None = None
        self._expires_at: float | None = None
        self._changes = 0
        self._changed_seconds = 0.0

    def is_hung(self, process: ProcessId | None, expires_at: float | None, now_seconds: float) -> bool:
        """Whether `process`, under a term that is now known to expire at `expires_at` (by whatever clock), has stopped renewing it.

        A life that has not renewed yet is never said to hang: the term may be that of the life before, and loading takes as long as it takes.
        """
        if process != self._process:
            self._process, self._expires_at, self._changes = process, expires_at, 0
        elif expires_at != self._expires_at:
            self._expires_at, self._changes, self._changed_seconds = expires_at, self._changes + 1, now_seconds
        # The first change may be the taking of the term.
        return process is not None and self._changes >= 2 and now_seconds - self._changed_seconds >= SILENT_SECONDS

    def not_seen(self, now_seconds: float) -> None:
        """Nobody can renew a term at a buffer that does not answer: the time until it does is not counted."""
        self._changed_seconds = now_seconds
