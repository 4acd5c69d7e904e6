"""Keys and values of running replies: what they do not have in common with others.

A reply sits in a pool of replies whose caches have the same capacity, and moves to the next pool when it outgrows it. So a decode step needs one
attention call per pool, wastes at most a quarter of the work on empty places, copies nothing while a reply stays in its pool, and computes the
attention of a reply in a shape that depends on its own length only: neighbours cannot change its bits. The whole chunks that its prompt begins
with are not with it: they have a seat of their own, which all replies that begin so share (`beginnings`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

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
    """Tokens in the pool."""
    beginning: Seat | None = None
    """Where the tokens before them are, if that is elsewhere."""
    capacity: int = 0
    row: int = -1

    @property
    def num_tokens(self) -> int:
        """All tokens of the reply, its prompt included."""
        return self.length + (self.beginning.length if self.beginning is not None else 0)


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
    """Caches by capacity, which is a function of their length: by default there is room for a token more."""

    def __init__(self, architecture: Architecture, *, capacity_of: Callable[[int], int] = lambda length: capacity_for(length + 1)) -> None:
        self._architecture = architecture
        self._capacity_of = capacity_of
        self._pools: dict[int, Pool] = {}

    def __iter__(self) -> Iterator[Pool]:
        """Pools that hold somebody, by capacity."""
        return iter([pool for _, pool in sorted(self._pools.items())])

    def seat(self, runs: Sequence[Sequence[Tensor]], length: int, beginning: Seat | None = None) -> Seat:
        """Give a place to a reply whose first `length` tokens after `beginning` have the keys and values `runs` (for each run, for each layer)."""
        seat = Seat(length=length, beginning=beginning)
        self._enter(seat)
        if runs:
            for layer, tensor in enumerate(self._pools[seat.capacity].layers):
                torch.cat([run[layer] for run in runs], dim=1, out=tensor[seat.row, :, :length])
        return seat

    def expect(self, lengths: Iterable[int]) -> None:
        """Make room for that many more caches of these lengths at once, which is cheaper than one by one."""
        for capacity, count in Counter(map(self._capacity_of, lengths)).items():
            pool = self._pools.setdefault(capacity, Pool(capacity))
            if len(pool.seats) + count > pool.num_rows:
                # By half at least: replies come one by one too, and every growth copies the pool.
                self._grow(pool, max(len(pool.seats) + count, pool.num_rows * 3 // 2))

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
        seat.capacity = self._capacity_of(seat.length)
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
