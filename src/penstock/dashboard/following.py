"""Reads a metrics file as it grows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

_DECODE = msgspec.json.Decoder(dict[str, Any])


class Follower:
    """Gives each whole line of a file once. A file that is not there yet has no lines; one that became shorter is read from its start."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._place = 0

    def lines(self) -> list[dict[str, Any]]:
        """The lines since the last call. What a killed writer left of its last line is not one."""
        try:
            with self._path.open("rb") as file:
                if file.seek(0, 2) < self._place:
                    self._place = 0
                file.seek(self._place)
                new = file.read()
        except FileNotFoundError:
            return []
        whole = new[: new.rfind(b"\n") + 1]
        self._place += len(whole)
        return [_DECODE.decode(line) for line in whole.splitlines() if line]
