"""Damaged records: each is reported once, and its bytes are kept where nobody takes them for a record."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from penstock.buffer.store._connections import ReaderPool
from penstock.buffer.store._rows import Row
from penstock.errors import CorruptError

log = logging.getLogger(__name__)


class Damage:
    """What was found damaged, by its place. May be called from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sentences: dict[tuple[str, str, str], str] = {}
        self.set_aside: Callable[[Row], None] | None = None
        """Keeps the bytes; None where nothing may be written."""

    def by_run(self) -> tuple[tuple[str, str], ...]:
        """Run and sentence of each damaged record."""
        with self._lock:
            return tuple((run, sentence) for (_, run, _), sentence in self._sentences.items())

    def remember(self, readers: ReaderPool) -> None:
        """Know what was found by those who had the store open before."""
        with readers.connection() as connection:
            for kind, run, key, sentence in connection.execute("SELECT kind, run, key, sentence FROM quarantine ORDER BY rowid"):
                self._sentences[kind, run, key] = sentence

    def note(self, kind: str, run: str, key: str, error: CorruptError, body: object) -> None:
        """Report a damaged record, unless it is known."""
        place = (_printable(kind), _printable(run), _printable(key))
        where = "it was only reported, since the store is open read-only" if self.set_aside is None else "its bytes are in the table `quarantine`"
        sentence = _printable(f"{error}; {where}")
        with self._lock:
            if place in self._sentences:
                return
            self._sentences[place] = sentence
        if self.set_aside is not None:
            log.error("%s", sentence)
            self.set_aside((*place, sentence, body))


def _printable(text: str) -> str:
    """Damaged text as it can be stored and shown."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
