"""Computing prompts: many at once, each chunk of tokens once."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from penstock.inference.engine.forward import MIN_ROWS, forward
from penstock.inference.engine.packing import Weights
from penstock.inference.engine.prefixes import CHUNK, Chunk, Key, PrefixCache, chunk_key
from penstock.types import Int32Array


@dataclass(slots=True, eq=False)
class Prompt:
    """Tokens to be computed, and the chunks that were so far."""

    ids: Int32Array
    chunks: list[Chunk] = field(default_factory=list)
    num_done: int = 0
    num_cached: int = 0
    """Tokens that somebody else had computed."""

    @property
    def is_done(self) -> bool:
        """Whether all tokens are computed."""
        return self.num_done == len(self.ids)

    def next_key(self) -> Key:
        """Key of the first chunk that is missing."""
        return chunk_key(self.chunks[-1] if self.chunks else None, self.ids[self.num_done : self.num_done + CHUNK])

    def take_cached(self, cache: PrefixCache) -> None:
        """Take over what `cache` has of the rest."""
        while not self.is_done:
            chunk = cache.find(self.next_key())
            if chunk is None:
                return
            self.append(chunk)
            self.num_cached += chunk.num_tokens

    def append(self, chunk: Chunk) -> None:
        """The next chunk is known."""
        self.chunks.append(chunk)
        self.num_done += chunk.num_tokens


class Prefill:
    """Computes prompts under one set of weights, with the chunks it keeps."""

    def __init__(self, weights: Weights, rotations: Tensor, *, max_kept_tokens: int, max_rows: int) -> None:
        self._weights = weights
        self._rotations = rotations
        self._max_rows = max(max_rows, CHUNK)
        self._numbers = itertools.count(1)
        self.cache = PrefixCache(max_kept_tokens)

    def use(self, weights: Weights) -> None:
        """Compute under other weights from now on."""
        self._weights = weights
        self.cache.clear()

    def run(self, prompts: Sequence[Prompt]) -> None:
        """Compute all that is missing of `prompts`, `max_rows` tokens at a time. Equal beginnings are computed once."""
        while wave := self._next_wave(prompts):
            self._compute(wave)

    def _next_wave(self, prompts: Sequence[Prompt]) -> list[tuple[Prompt, int]]:
        """Prompts to go on with, and up to which token. Of those that want the same chunk next, only the first: the others find it afterwards."""
        wave: list[tuple[Prompt, int]] = []
        claimed: set[Key] = set()
        room = self._max_rows
        for prompt in prompts:
            prompt.take_cached(self.cache)
            if prompt.is_done or room < CHUNK or (key := prompt.next_key()) in claimed:
                continue
            claimed.add(key)
            stop = min(len(prompt.ids), prompt.num_done + room // CHUNK * CHUNK)
            wave.append((prompt, stop))
            room -= stop - prompt.num_done
        return wave

    def _compute(self, wave: Sequence[tuple[Prompt, int]]) -> None:
        ids = np.concatenate([prompt.ids[prompt.num_done : stop] for prompt, stop in wave])
        positions = np.concatenate([np.arange(prompt.num_done, stop) for prompt, stop in wave])
        padding = (0, max(0, MIN_ROWS - len(ids)))
        attention = _PrefillAttention(wave, self._weights)
        rows = torch.from_numpy(np.pad(ids, padding)).long(), self._rotations[torch.from_numpy(np.pad(positions, padding))]
        hidden = forward(self._weights, *rows, attention)
        start_row = 0
        for index, (prompt, stop) in enumerate(wave):
            first = prompt.num_done
            for start, end in _chunks(first, stop):
                chunk = Chunk(
                    number=next(self._numbers),
                    num_tokens=end - start,
                    # Copies, so that a kept chunk does not hold on to the memory of the whole prompt.
                    layers=[keys_values[:, start:end].clone() for keys_values in attention.computed[index]],
                    hidden=hidden[start_row + end - first - 1].clone(),
                )
                self.cache.add(prompt.next_key(), chunk)
                prompt.append(chunk)
            start_row += stop - first


class _PrefillAttention:
    """Attention of prompt rows to their own prompt, chunk by chunk."""

    def __init__(self, wave: Sequence[tuple[Prompt, int]], weights: Weights) -> None:
        self._wave = wave
        self._architecture = weights.architecture
        self._masks = {(start, end): self._mask(start, end) for prompt, stop in wave for start, end in _chunks(prompt.num_done, stop)}
        self.computed: list[list[Tensor]] = [[] for _ in wave]
        """For each prompt, for each layer, keys and values (key heads then value heads, token, head size) from the first token on."""

    def __call__(self, layer: int, heads_NHD: Tensor) -> Tensor:
        num_heads, num_kv_heads, head_size = self._architecture.num_heads, self._architecture.num_kv_heads, self._architecture.head_size
        out = torch.zeros(len(heads_NHD), num_heads * head_size)
        row = 0
        for (prompt, stop), computed in zip(self._wave, self.computed, strict=True):
            first = prompt.num_done
            heads = heads_NHD[row : row + stop - first].transpose(0, 1)
            keys_values = torch.cat([chunk.layers[layer] for chunk in prompt.chunks] + [heads[num_heads:]], dim=1)
            computed.append(keys_values)
            for start, end in _chunks(first, stop):
                seen = keys_values[None, :, :end]
                # As in decoding, the query heads of one key head are laid out as if they were further tokens.
                queries = heads[:num_heads, start - first : end - first].reshape(1, num_kv_heads, -1, head_size)
                mixed = F.scaled_dot_product_attention(queries, seen[:, :num_kv_heads], seen[:, num_kv_heads:], attn_mask=self._masks[start, end])
                out[row : row + end - start] = mixed.view(num_heads, end - start, head_size).transpose(0, 1).flatten(1)
                row += end - start
        return out

    def _mask(self, start: int, end: int) -> Tensor:
        """(query head within a key head * token, token seen): a token sees itself and what stands before it."""
        later = torch.arange(end)[None, :] > torch.arange(start, end)[:, None]
        return torch.zeros(later.shape).masked_fill_(later, -math.inf).repeat(self._architecture.heads_per_kv, 1)


def _chunks(start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Borders of the chunks between two tokens; `start` is one.

    >>> list(_chunks(64, 150))
    [(64, 128), (128, 150)]
    """
    for first in range(start, stop, CHUNK):
        yield first, min(first + CHUNK, stop)
