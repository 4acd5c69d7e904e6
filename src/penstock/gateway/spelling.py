"""Token ids as JSON, turn after turn of a conversation that grows."""

from __future__ import annotations

import msgspec

from penstock.types import Int32Array


class Speller:
    """Spells prompts that mostly begin with the one before: only what is new is spelled anew."""

    def __init__(self) -> None:
        self._known = b""
        """The ids that are spelled, as they lie in memory: so they are compared in one step."""
        self._spelled = b"[]"

    def spell(self, ids: Int32Array) -> bytes:
        """The ids as a JSON list."""
        raw, num_known = ids.tobytes(), len(self._known) // ids.itemsize
        if num_known and len(ids) > num_known and raw.startswith(self._known):
            # All but the bracket that closed it, and what is new but for the one that opens it: put together in one step, for it may be long.
            self._spelled = b"".join((memoryview(self._spelled)[:-1], b",", msgspec.json.encode(ids[num_known:].tolist())[1:]))
        else:
            self._spelled = msgspec.json.encode(ids.tolist())
        self._known = raw
        return self._spelled
