"""A stand-in for the package `tqdm` where it is not installed: it counts, and says from time to time how far it is."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

LINE_SECONDS = 10.0


class tqdm:
    """A counter, or a loop that counts."""

    def __init__(self, iterable: Iterable[Any] | None = None, desc: str | None = None, total: int | None = None, **_: Any) -> None:
        self._iterable = iterable if iterable is not None else ()
        self.desc = desc or "done"
        self.total = total
        self.n = 0
        self._shown_at = time.monotonic()

    def __iter__(self) -> Iterator[Any]:
        for one in self._iterable:
            yield one
            self.update()
        self.close()

    def __enter__(self) -> tqdm:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def update(self, n: int = 1) -> None:
        """`n` more."""
        self.n += n
        if time.monotonic() - self._shown_at >= LINE_SECONDS:
            self.close()

    def set_description(self, desc: str) -> None:
        """What is being counted."""
        self.desc = desc

    def close(self) -> None:
        """Say how far it is."""
        self._shown_at = time.monotonic()
        sys.stderr.write(f"{self.desc}: {self.n}{f'/{self.total}' if self.total is not None else ''}\n")
        sys.stderr.flush()
