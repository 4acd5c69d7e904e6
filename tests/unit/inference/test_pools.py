from __future__ import annotations

from typing import Any

import numpy as np
import torch

from penstock.inference.engine.pools import Pools, capacity_for


def test_capacities_waste_at_most_a_quarter_beyond_the_smallest() -> None:
    for length in range(1, 5000):
        capacity = capacity_for(length)
        assert length <= capacity < max(length + 32, 1.25 * length + 1)
        assert capacity_for(capacity) == capacity


def test_caches_survive_any_coming_growing_and_going(llama: Any) -> None:
    """Against the obvious reference: a dict of what each seat should hold."""
    architecture = llama.architecture
    pools, random = Pools(architecture), np.random.default_rng(0)
    shape = (2 * architecture.num_kv_heads, architecture.head_size)
    expected: dict[Any, list[torch.Tensor]] = {}
    for _ in range(400):
        action = random.integers(0, 10)
        if action < 2 or not expected:
            length = int(random.integers(1, 70))
            tokens = [torch.from_numpy(random.normal(size=(architecture.num_layers, *shape))).float() for _ in range(length)]
            cut = int(random.integers(0, length + 1))
            runs = [
                [torch.stack([token[layer] for token in part], dim=1) for layer in range(architecture.num_layers)]
                for part in (tokens[:cut], tokens[cut:])
                if part
            ]
            expected[pools.seat(runs, length)] = tokens
        elif action < 9:
            pools.extend(list(expected))
            for seat, tokens in expected.items():
                token = torch.from_numpy(random.normal(size=(architecture.num_layers, *shape))).float()
                pool = next(pool for pool in pools if pool.capacity == seat.capacity)
                for layer in range(architecture.num_layers):
                    pool.layers[layer][seat.row, :, seat.length] = token[layer]
                tokens.append(token)
                seat.length += 1
        else:
            seat = list(expected)[int(random.integers(0, len(expected)))]
            pools.leave(seat)
            del expected[seat]
    seats = [seat for pool in pools for seat in pool.seats]
    assert set(seats) == set(expected)
    assert {pool.capacity for pool in pools} == {seat.capacity for seat in seats}
    for pool in pools:
        for row, seat in enumerate(pool.seats):
            assert (seat.row, seat.length) == (row, len(expected[seat]))
            for layer in range(architecture.num_layers):
                assert torch.equal(pool.layers[layer][row, :, : seat.length], torch.stack([token[layer] for token in expected[seat]], dim=1))
