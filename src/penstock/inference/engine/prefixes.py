"""Keys and values of prompts, by what the tokens are, so that replies to the same beginning share its computation.

A prompt is cut into chunks of `CHUNK` tokens and a shorter tail. A chunk is always computed in the same shape, whoever asks for it first, so its
numbers are a function of weights and tokens up to its end alone. That is why only whole chunks and identical tails are shared.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from penstock.types import Int32Array

CHUNK = 64
ROOT = 0

Key = tuple[int, bytes]
"""Number of the chunk before (`ROOT` for the first) and the tokens. Exact: two prompts never meet under one key."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chunk:
    """A run of tokens that has been computed."""

    number: int
    """Never used twice."""
    num_tokens: int
    layers: Sequence[Tensor]
    """For each layer (key heads then value heads, token, head size)."""
    hidden: Tensor
    """Final hidden state of the last token."""


class PrefixCache:
    """Chunks that were used last, up to `max_tokens` of them."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._num_tokens = 0
        self._chunks: OrderedDict[Key, Chunk] = OrderedDict()

    @property
    def num_tokens(self) -> int:
        """Tokens that are kept."""
        return self._num_tokens

    def find(self, key: Key) -> Chunk | None:
        """The chunk, if it is there; it counts as used."""
        chunk = self._chunks.get(key)
        if chunk is not None:
            self._chunks.move_to_end(key)
        return chunk

    def add(self, key: Key, chunk: Chunk) -> None:
        """Keep `chunk`, and drop the longest unused ones if there are too many. Whoever holds a dropped one may go on using it."""
        self._chunks[key] = chunk
        self._num_tokens += chunk.num_tokens
        while self._num_tokens > self._max_tokens:
            _, dropped = self._chunks.popitem(last=False)
            self._num_tokens -= dropped.num_tokens

    def clear(self) -> None:
        """Drop everything: the weights are others now."""
        self._chunks.clear()
        self._num_tokens = 0


def chunk_key(before: Chunk | None, ids: Int32Array) -> Key:
    """Key of the chunk that spells `ids` after `before`."""
    return (before.number if before is not None else ROOT, ids.tobytes())
