"""One decode step over shared beginnings and own caches is attention over both laid end to end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from penstock.inference.engine.decoding import TILE, DecodeAttention
from penstock.inference.engine.pools import Pools, Seat
from penstock.inference.engine.prefixes import Beginning, Beginnings, Chunk

RANDOM = torch.Generator().manual_seed(3)


def keys_values(architecture: Any, num_tokens: int) -> list[torch.Tensor]:
    return [torch.randn(2 * architecture.num_kv_heads, num_tokens, architecture.head_size, generator=RANDOM) for _ in range(architecture.num_layers)]


def chunk(architecture: Any, number: int, num_tokens: int) -> Chunk:
    return Chunk(number=number, num_tokens=num_tokens, layers=keys_values(architecture, num_tokens), hidden=torch.zeros(architecture.hidden_size))


def slow(architecture: Any, heads: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """Attention of one row, head by head, in double, over keys and values (key heads then value heads, token, size)."""
    mixed = []
    for head in range(architecture.num_heads):
        kv_head = head // architecture.heads_per_kv
        keys, values = seen[kv_head].double(), seen[architecture.num_kv_heads + kv_head].double()
        scores = keys @ heads[head].double() / architecture.head_size**0.5
        mixed.append(torch.softmax(scores, 0) @ values)
    return torch.cat(mixed)


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_a_row_attends_to_its_beginning_and_to_its_own_tokens(name: str, bench_of: Any) -> None:
    architecture = bench_of(name).architecture
    pools, beginnings = Pools(architecture), Beginnings()
    shared = [[chunk(architecture, 1, 64)], [chunk(architecture, 2, 64), chunk(architecture, 3, 64)], []]
    held: dict[Seat, list[list[torch.Tensor]]] = {}
    # More than a tile of one beginning, one alone, some without; own caches of several capacities, one empty.
    for number, length in enumerate([0, 3, 40, 31, 70, 5, 6, 7, 8, 9, 100, 33, 1]):
        chunks = shared[0] if number <= TILE else shared[number % 2 + 1]
        own = [keys_values(architecture, length)] if length else []
        seat = pools.seat(own, length, beginnings.of(chunks))
        held[seat] = [[*part.layers] for part in chunks] + own
    pools.extend(list(held))
    seats = [seat for pool in pools for seat in pool.seats]
    attend = DecodeAttention(list(pools), architecture)
    for layer in range(architecture.num_layers):
        heads = torch.randn(len(seats) + 2, architecture.num_heads + 2 * architecture.num_kv_heads, architecture.head_size, generator=RANDOM)
        found = attend(layer, heads)
        for row, seat in enumerate(seats):
            seen = torch.cat([part[layer] for part in held[seat]] + [heads[row, architecture.num_heads :, None]], dim=1)
            assert seen.shape[1] == seat.num_tokens + 1
            torch.testing.assert_close(found[row].double(), slow(architecture, heads[row], seen), atol=2e-6, rtol=1e-5)
        assert not found[len(seats) :].any()


def test_a_beginning_is_kept_once_and_as_long_as_somebody_holds_it(llama: Any) -> None:
    beginnings = Beginnings()
    chunks = [chunk(llama.architecture, 1, 64), chunk(llama.architecture, 2, 64)]
    first: Beginning | None = beginnings.of(chunks)
    assert first is not None
    assert first.num_tokens == 128
    assert beginnings.of(chunks) is first
    assert beginnings.of(chunks[:1]) is not first
    assert beginnings.of([]) is None
    assert beginnings.of([chunks[0], replace(chunks[1], number=3)]) is not first
    del first
    assert len(beginnings) == 0
