"""Token ids as JSON, turn after turn of a conversation that grows."""

from __future__ import annotations

import msgspec
import numpy as np

from penstock.types import Int32Array


class Speller:
    """Spells prompts that mostly begin with the one before: only what is new is spelled anew."""

    def __init__(self) -> None:
        self._ids = np.empty(0, np.int32)
        self._spelled = b"["

    def spell(self, ids: Int32Array) -> bytes:
        """The ids as a JSON list."""
        num_known = len(self._ids)
        if num_known and len(ids) > num_known and np.array_equal(ids[:num_known], self._ids):
            self._spelled += b"," + msgspec.json.encode(ids[num_known:].tolist())[1:-1]
        else:
            self._spelled = msgspec.json.encode(ids.tolist())[:-1]
        self._ids = ids
        return self._spelled + b"]"
