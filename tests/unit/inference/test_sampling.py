from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from penstock.inference.engine.sampling import Randomness, Sampling, draw

HALVES = torch.tensor([[0.5, 0.25, 0.125, 0.125]]).log()


@pytest.mark.parametrize(("uniform", "token"), [(0.0, 0), (0.49, 0), (0.51, 1), (0.74, 1), (0.76, 2), (0.874, 2), (0.876, 3), (1 - 2**-53, 3)])
def test_the_token_is_where_the_running_sum_passes_the_number(uniform: float, token: int) -> None:
    (drawn,) = draw(HALVES, [Sampling()], [uniform])
    assert drawn.id == token
    assert drawn.logprob == drawn.raw_logprob == pytest.approx(HALVES[0, token].item(), abs=1e-6)


def test_a_token_without_a_chance_is_never_drawn() -> None:
    logits = torch.tensor([[-math.inf, 0.0, -math.inf]])
    assert [draw(logits, [Sampling()], [uniform])[0].id for uniform in (0.0, 0.5, 1 - 2**-53)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("setting", "kept"),
    [
        (Sampling(top_k=1), {0}),
        (Sampling(top_k=2), {0, 1}),
        (Sampling(top_k=9), {0, 1, 2, 3}),
        (Sampling(top_p=0.4), {0}),
        (Sampling(top_p=0.6), {0, 1}),
        (Sampling(top_p=0.8), {0, 1, 2}),
        (Sampling(top_p=0.9), {0, 1, 2, 3}),
        (Sampling(top_p=0.9, top_k=2), {0, 1}),
        (Sampling(temperature=0.0), {0}),
    ],
)
def test_filters_keep_the_likeliest(setting: Sampling, kept: set[int]) -> None:
    drawn = {draw(HALVES, [setting], [uniform])[0].id for uniform in np.linspace(0, 1, 101)[:-1]}
    assert drawn == kept


def test_filters_do_not_change_the_reported_logprob() -> None:
    (drawn,) = draw(HALVES, [Sampling(top_k=1)], [0.9])
    assert drawn.logprob == pytest.approx(math.log(0.5), abs=1e-6)


def test_rows_are_drawn_as_if_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(40, 512, generator=generator) * 3
    settings = [Sampling(temperature=(0.0, 0.5, 1.0, 1.7)[row % 4], top_p=0.8 if row % 3 == 0 else 1.0, num_alternatives=row % 5) for row in range(40)]
    uniforms = torch.rand(40, generator=generator).tolist()
    together = draw(logits, settings, uniforms)
    assert together == [draw(logits[row : row + 1], [settings[row]], [uniforms[row]])[0] for row in range(40)]


def test_logprobs_equal_a_slow_reference() -> None:
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(1)) * 4
    for row, drawn in enumerate(draw(logits, [Sampling(temperature=0.7)] * 6, [0.3] * 6)):
        warm, raw = (np.array(logits[row].tolist()) / temperature for temperature in (0.7, 1.0))
        assert drawn.logprob == pytest.approx(warm[drawn.id] - np.log(np.exp(warm).sum()), abs=1e-5)
        assert drawn.raw_logprob == pytest.approx(raw[drawn.id] - np.log(np.exp(raw).sum()), abs=1e-5)


def test_alternatives_are_the_likeliest_in_order() -> None:
    (drawn,) = draw(torch.tensor([[0.0, 3.0, 1.0, 2.0]]), [Sampling(num_alternatives=3)], [0.0])
    assert [id for id, _ in drawn.alternatives] == [1, 3, 2]


def test_random_numbers_are_a_function_of_seed_choice_and_place() -> None:
    first = [Randomness(5, 0).at(place) for place in (0, 63, 64, 200)]
    backwards = Randomness(5, 0)
    assert [backwards.at(place) for place in (200, 64, 63, 0)] == first[::-1]
    assert Randomness(5, 1).at(0) != first[0] != Randomness(6, 0).at(0)
    assert all(0 <= number < 1 for number in first)
    assert Randomness(-1, 0).at(0) == Randomness(2**64 - 1, 0).at(0)
