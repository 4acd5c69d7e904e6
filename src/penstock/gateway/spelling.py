"""Token ids as JSON, turn after turn of a conversation that grows."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.types import Int32Array
from penstock.types.fixed import OfFixedArrays

spell = OfFixedArrays(lambda ids: msgspec.json.encode(ids.tolist())[1:-1])
"""Token ids as a JSON list, without its brackets."""


class Speller:
    """Spells prompts that mostly begin with the one before: only what is new is spelled anew."""

    def __init__(self) -> None:
        self._ids: Int32Array | None = None
        """The prompt before."""
        self._spelled = b""

    def spell(self, ids: Int32Array, parts: Sequence[Int32Array]) -> bytes:
        """As the function `spell`, of a prompt that was put together of `parts`. The caller changes none of them afterwards."""
        begun, rest = (self._spelled, parts[1:]) if parts and parts[0] is self._ids else (b"", parts)
        self._spelled = b",".join([spelled for spelled in (begun, *[spell(part) for part in rest]) if spelled])
        self._ids = ids
        return self._spelled
