"""Keys and values of running replies, and attention over them, one token each.

A reply sits in a pool of replies whose caches have the same capacity, and moves to the next pool when it outgrows it. So a decode step needs one
attention call per pool, wastes at most a quarter of the work on empty places, copies nothing while a reply stays in its pool, and computes the
attention of a reply in a shape that depends on its own length only: neighbours cannot change its bits.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from penstock.inference.engine.architecture import Architecture

SMALLEST_CAPACITY = 32


def capacity_for(length: int) -> int:
    """Places of the pool for a cache of `length` tokens.

    >>> [capacity_for(length) for length in (1, 32, 33, 129, 257, 1025)]
    [32, 32, 64, 160, 320, 1280]
    """
    step = max(SMALLEST_CAPACITY, 1 << max(0, (length - 1).bit_length() - 3))
    return -(-length // step) * step


@dataclass(slots=True, eq=False)
class Seat:
    """Where the cache of one reply is."""

    length: int
    """Tokens in the cache."""
    capacity: int = 0
    row: int = -1


@dataclass(slots=True, eq=False)
class Pool:
    """Caches of equal capacity, without holes: rows 0 to `len(seats)` are taken."""

    capacity: int
    seats: list[Seat] = field(default_factory=list)
    layers: list[Tensor] = field(default_factory=list)
    """For each layer (row, key heads then value heads, capacity, head size)."""

    @property
    def num_rows(self) -> int:
        """Caches that there is room for."""
        return len(self.layers[0]) if self.layers else 0


class Pools:
    """All caches of running replies."""

    def __init__(self, architecture: Architecture) -> None:
        self._architecture = architecture
        self._pools: dict[int, Pool] = {}

    def __iter__(self) -> Iterator[Pool]:
        """Pools that hold somebody, by capacity."""
        return iter([pool for _, pool in sorted(self._pools.items())])

    def seat(self, runs: Sequence[Sequence[Tensor]], length: int) -> Seat:
        """Give a place to a reply whose first `length` tokens have the keys and values `runs` (for each run of tokens, for each layer)."""
        seat = Seat(length=length)
        self._enter(seat)
        for layer, tensor in enumerate(self._pools[seat.capacity].layers):
            torch.cat([run[layer] for run in runs], dim=1, out=tensor[seat.row, :, :length])
        return seat

    def expect(self, lengths: Iterable[int]) -> None:
        """Make room for that many more caches of these lengths at once, which is cheaper than one by one."""
        for capacity, count in Counter(capacity_for(length + 1) for length in lengths).items():
            pool = self._pools.setdefault(capacity, Pool(capacity))
            if len(pool.seats) + count > pool.num_rows:
                self._grow(pool, len(pool.seats) + count)

    def extend(self, seats: Sequence[Seat]) -> None:
        """Make room for one token more in each of `seats`."""
        full = [seat for seat in seats if seat.length == seat.capacity]
        self.expect(seat.length for seat in full)
        for seat in full:
            old_pool, old_row = self._pools[seat.capacity], seat.row
            self._enter(seat)
            for old, new in zip(old_pool.layers, self._pools[seat.capacity].layers, strict=True):
                new[seat.row, :, : seat.length] = old[old_row, :, : seat.length]
            self._vacate(old_pool, old_row)

    def leave(self, seat: Seat) -> None:
        """Free the place."""
        self._vacate(self._pools[seat.capacity], seat.row)

    def clear(self) -> None:
        """Free all places."""
        self._pools.clear()

    def _enter(self, seat: Seat) -> None:
        seat.capacity = capacity_for(seat.length + 1)
        pool = self._pools.setdefault(seat.capacity, Pool(seat.capacity))
        seat.row = len(pool.seats)
        if seat.row == pool.num_rows:
            self._grow(pool, 2 * seat.row)
        pool.seats.append(seat)

    def _grow(self, pool: Pool, num_rows: int) -> None:
        architecture, taken = self._architecture, len(pool.seats)
        shape = (max(4, num_rows), 2 * architecture.num_kv_heads, pool.capacity, architecture.head_size)
        # Zeros, because an empty place is read and multiplied by a weight of zero: what was there must be a number.
        layers = [torch.zeros(shape) for _ in range(architecture.num_layers)]
        for old, new in zip(pool.layers, layers, strict=False):
            new[:taken] = old[:taken]
        pool.layers = layers

    def _vacate(self, pool: Pool, row: int) -> None:
        """Fill the hole with the last row."""
        last_row = len(pool.seats) - 1
        last = pool.seats.pop()
        if last_row != row:
            for layer in pool.layers:
                layer[row] = layer[last_row]
            pool.seats[row] = last
            last.row = row
        if not pool.seats:
            del self._pools[pool.capacity]


class DecodeAttention:
    """Attention of one decode step: row i of the forward pass is the i-th seat over all pools; rows beyond them are padding."""

    def __init__(self, pools: Sequence[Pool], architecture: Architecture) -> None:
        self._architecture = architecture
        self._slices: list[tuple[int, int, Pool, Tensor, Tensor, Tensor]] = []
        start = 0
        for pool in pools:
            stop = start + len(pool.seats)
            positions = torch.tensor([seat.length for seat in pool.seats])
            hidden = torch.arange(pool.capacity) > positions[:, None]
            mask = torch.zeros(hidden.shape).masked_fill_(hidden, -math.inf)[:, None, None, :]
            self._slices.append((start, stop, pool, torch.arange(stop - start), positions, mask))
            start = stop

    def __call__(self, layer: int, heads_NHD: Tensor) -> Tensor:
        num_heads, num_kv_heads, head_size = self._architecture.num_heads, self._architecture.num_kv_heads, self._architecture.head_size
        out = torch.zeros(len(heads_NHD), num_heads * head_size)
        for start, stop, pool, rows, positions, mask in self._slices:
            cache = pool.layers[layer]
            cache[rows, :, positions] = heads_NHD[start:stop, num_heads:]
            taken = cache[: stop - start]
            # Query heads of one key head stand where several tokens would: they attend to the same places.
            queries = heads_NHD[start:stop, :num_heads].view(stop - start, num_kv_heads, -1, head_size)
            mixed = F.scaled_dot_product_attention(queries, taken[:, :num_kv_heads], taken[:, num_kv_heads:], attn_mask=mask)
            out[start:stop].view_as(mixed).copy_(mixed)
        return out
