"""One decode step over shared beginnings and own caches is attention over both laid end to end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from penstock.inference.engine.beginnings import Beginnings
from penstock.inference.engine.decoding import DecodeAttention
from penstock.inference.engine.pools import Pools, Seat
from penstock.inference.engine.prefixes import Chunk

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
    pools, beginnings = Pools(architecture), Beginnings(architecture)
    shared = [[chunk(architecture, 1, 64)], [chunk(architecture, 2, 64), chunk(architecture, 3, 64)], [], [chunk(architecture, 4, 64)]]
    held: dict[Seat, list[list[torch.Tensor]]] = {}
    # A longer beginning, none, and one that lies before that of more than a tile, which is as long; own caches of several capacities, one empty.
    for number, length in enumerate([0, 3, 40, 31, 70, 5, 6, 7, 8, 9, 100, 33, 1]):
        chunks = shared[number % 3 + 1] if number < 4 else shared[0]
        own = [keys_values(architecture, length)] if length else []
        seat = pools.seat(own, length, beginnings.join(chunks))
        held[seat] = [[*part.layers] for part in chunks] + own
    pools.extend(list(held))
    seats = [seat for pool in pools for seat in pool.seats]
    attend = DecodeAttention(list(pools), beginnings.pools, architecture)
    for layer in range(architecture.num_layers):
        heads = torch.randn(len(seats) + 2, architecture.num_heads + 2 * architecture.num_kv_heads, architecture.head_size, generator=RANDOM)
        found = attend(layer, heads)
        for row, seat in enumerate(seats):
            seen = torch.cat([part[layer] for part in held[seat]] + [heads[row, architecture.num_heads :, None]], dim=1)
            assert seen.shape[1] == seat.num_tokens + 1
            torch.testing.assert_close(found[row].double(), slow(architecture, heads[row], seen), atol=2e-6, rtol=1e-5)
        assert not found[len(seats) :].any()


def test_a_beginning_is_kept_once_and_as_long_as_a_reply_has_it(llama: Any) -> None:
    beginnings = Beginnings(llama.architecture)
    chunks = [chunk(llama.architecture, 1, 64), chunk(llama.architecture, 2, 64)]
    both, first = beginnings.join(chunks), beginnings.join(chunks[:1])
    other = beginnings.join([chunks[0], replace(chunks[1], number=3)])
    assert both is not None and first is not None and other is not None
    assert beginnings.join([]) is None
    assert beginnings.join(chunks) is both
    assert [(pool.capacity, len(pool.seats)) for pool in beginnings.pools] == [(64, 1), (128, 2)]
    beginnings.leave(both)
    assert len(beginnings) == 3
    beginnings.leave(both)
    # The last one moves to the place that is free, with what it holds.
    assert [pool.seats for pool in beginnings.pools] == [[first], [other]]
    held = beginnings.pools[1].layers[0][other.row]
    assert torch.equal(held, torch.cat([part.layers[0] for part in chunks], dim=1))
    for seat in (first, other):
        beginnings.leave(seat)
    assert (len(beginnings), beginnings.pools) == (0, [])


def test_a_beginning_that_was_forgotten_is_laid_together_anew(llama: Any) -> None:
    beginnings = Beginnings(llama.architecture)
    # The last chunk of a prompt may be shorter than those before it.
    chunks = [chunk(llama.architecture, 1, 64), chunk(llama.architecture, 2, 32)]
    before = beginnings.join(chunks)
    beginnings.clear()
    assert (len(beginnings), beginnings.pools) == (0, [])
    other = [replace(part, layers=keys_values(llama.architecture, part.num_tokens)) for part in chunks]
    after = beginnings.join(other)
    assert after is not None
    assert after is not before
    (pool,) = beginnings.pools
    assert (pool.capacity, pool.seats) == (96, [after])
    assert torch.equal(pool.layers[0][after.row], torch.cat([part.layers[0] for part in other], dim=1))


def test_an_engine_holds_no_beginning_when_nobody_is_left(llama: Any, asked: Any, replies: Any) -> None:
    engine = llama.engine()
    replies(engine, *(asked(range(100 + index % 2), id=str(index), seed=index, num_choices=2) for index in range(6)))
    assert len(engine._beginnings) == 0
