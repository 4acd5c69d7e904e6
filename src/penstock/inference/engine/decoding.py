"""Attention of one decode step: one token of every running reply, over the beginning that it shares with others and over what is its own.

The two parts are computed apart, each over keys that lie together, and joined by the weight of each: what a softmax over both would have given. A
beginning is read once for all who share it, which is what decoding spends its time on. Every product has a shape that does not depend on neighbours:
those who share a beginning are taken `TILE` at a time, the last tile filled up. One call takes the first tiles of all beginnings of one length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.inference.engine.architecture import Architecture
from penstock.inference.engine.pools import Pool, Seat

TILE = 8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Own:
    """The replies of one pool: rows `start` to `stop` of the forward pass."""

    start: int
    stop: int
    pool: Pool
    seats_N: Tensor
    positions_N: Tensor
    """Place in the pool of the token that is decoded."""
    mask: Tensor
    """0 for places that are taken, -inf for empty ones."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Shared:
    """The replies that share some beginning, in tiles of rows, and how to find them again."""

    calls: Sequence[tuple[Pool, int, int]]
    """Each takes a tile for every beginning in a pool from one row to another."""
    tile_rows: Tensor
    """Row of the forward pass at each place of the tiles, call after call."""
    rows: Tensor
    """Rows that have a beginning."""
    places: Tensor
    """Where in the tiles each of them is."""


class DecodeAttention:
    """Row i of the forward pass is the i-th seat over all pools; rows beyond them are padding."""

    def __init__(self, pools: Sequence[Pool], beginnings: Sequence[Pool], architecture: Architecture) -> None:
        self._architecture = architecture
        self._own: list[_Own] = []
        start = 0
        for pool in pools:
            self._own.append(_own(pool, start))
            start = self._own[-1].stop
        self._shared = _shared([seat for pool in pools for seat in pool.seats], beginnings) if beginnings else None

    def __call__(self, layer: int, heads_NHD: Tensor) -> Tensor:
        num_heads, head_size = self._architecture.num_heads, self._architecture.head_size
        queries = heads_NHD[:, :num_heads]
        out = torch.zeros(len(heads_NHD), num_heads, head_size)
        weights = torch.zeros(len(heads_NHD), num_heads)
        for own in self._own:
            cache = own.pool.layers[layer]
            cache[own.seats_N, :, own.positions_N] = heads_NHD[own.start : own.stop, num_heads:]
            mixed, weight = self._attend(queries[own.start : own.stop, None], cache[: own.stop - own.start], own.mask)
            out[own.start : own.stop] = mixed[:, 0]
            weights[own.start : own.stop] = weight[:, 0]
        if self._shared is not None:
            self._join(self._shared, layer, queries, out, weights)
        return out.flatten(1)

    def _join(self, shared: _Shared, layer: int, queries: Tensor, out: Tensor, weights: Tensor) -> None:
        """Mix what the beginnings give into `out`."""
        tiles = queries[shared.tile_rows].view(-1, TILE, *queries.shape[1:])
        found = []
        start = 0
        for pool, first, last in shared.calls:
            found.append(self._attend(tiles[start : start + last - first], pool.layers[layer][first:last], None))
            start += last - first
        mixed = torch.cat([part for part, _ in found]).flatten(0, 1)[shared.places]
        weight = torch.cat([part for _, part in found]).flatten(0, 1)[shared.places]
        own = out[shared.rows]
        # As wide as what it weighs: the last numbers of a short row could be computed by other instructions than those of a long one.
        share = (weight - weights[shared.rows])[:, :, None].expand_as(own).contiguous().sigmoid_()
        out[shared.rows] = own.lerp_(mixed, share)

    def _attend(self, queries: Tensor, keys_values: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Queries (caches, tokens, heads, size) over caches (caches, key heads then value heads, places, size): mixed values of the queries' shape, and
        the logarithm of the weight that they have in all (caches, tokens, heads)."""
        num_kv_heads, per_kv = self._architecture.num_kv_heads, self._architecture.heads_per_kv
        num_caches, num_tokens, num_heads, size = queries.shape
        # Query heads of one key head stand where several tokens would: they attend to the same places.
        laid = queries.view(num_caches, num_tokens, num_kv_heads, per_kv, size).permute(0, 2, 1, 3, 4).reshape(num_caches, num_kv_heads, -1, size)
        # The kernel behind `scaled_dot_product_attention`, which keeps the weight to itself.
        mixed, weight = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            laid, keys_values[:, :num_kv_heads], keys_values[:, num_kv_heads:], attn_mask=mask
        )
        back = mixed.view(num_caches, num_kv_heads, num_tokens, per_kv, size).permute(0, 2, 1, 3, 4)
        log_weight = weight.view(num_caches, num_kv_heads, num_tokens, per_kv).permute(0, 2, 1, 3)
        return back.reshape(num_caches, num_tokens, num_heads, size), log_weight.reshape(num_caches, num_tokens, num_heads)


def _own(pool: Pool, start: int) -> _Own:
    positions_N = torch.tensor([seat.length for seat in pool.seats])
    hidden = torch.arange(pool.capacity) > positions_N[:, None]
    mask = torch.zeros(hidden.shape).masked_fill_(hidden, -math.inf)[:, None, None, :]
    return _Own(start=start, stop=start + len(pool.seats), pool=pool, seats_N=torch.arange(len(pool.seats)), positions_N=positions_N, mask=mask)


def _shared(seats: Sequence[Seat], beginnings: Sequence[Pool]) -> _Shared:
    members: dict[Seat, list[int]] = {beginning: [] for pool in beginnings for beginning in pool.seats}
    for row, seat in enumerate(seats):
        if seat.beginning is not None:
            members[seat.beginning].append(row)
    calls: list[tuple[Pool, int, int]] = []
    tiles: list[list[int]] = []
    for pool in beginnings:
        calls.append((pool, 0, len(pool.seats)))
        tiles += [members[beginning][:TILE] for beginning in pool.seats]
        for place, beginning in enumerate(pool.seats):
            for start in range(TILE, len(members[beginning]), TILE):
                calls.append((pool, place, place + 1))
                tiles.append(members[beginning][start : start + TILE])
    return _Shared(
        calls=calls,
        tile_rows=torch.tensor([row for tile in tiles for row in tile + tile[:1] * (TILE - len(tile))]),
        rows=torch.tensor([row for tile in tiles for row in tile]),
        places=torch.tensor([number * TILE + place for number, tile in enumerate(tiles) for place in range(len(tile))]),
    )
