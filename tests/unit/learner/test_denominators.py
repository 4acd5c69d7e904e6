from __future__ import annotations

import numpy as np
import pytest

from penstock.batching import pack
from penstock.learner.config import LossConfig
from penstock.learner.denominators import token_weights
from penstock.types import RlExample, Sample


@pytest.fixture
def example(samples: list[Sample]) -> RlExample:
    return pack(samples[:2], tokens_per_row=64)


def test_weights_by_hand(example: RlExample, samples: list[Sample]) -> None:
    first, second = (int(sample.loss_mask.sum()) for sample in samples[:2])
    mask = example.loss_mask
    assert first != second
    assert set(token_weights(example, LossConfig(denominator="token_mean"))[mask]) == {1 / (first + second)}
    assert set(token_weights(example, LossConfig(denominator="fixed", fixed_denominator=50.0))[mask]) == {1 / 50}
    weights = token_weights(example, LossConfig(denominator="sequence_mean"))
    assert set(weights[mask & (example.sample_ids == 0)]) == {1 / (2 * first)}
    assert set(weights[mask & (example.sample_ids == 1)]) == {1 / (2 * second)}


@pytest.mark.parametrize("denominator", ["token_mean", "sequence_mean", "fixed"])
def test_there_is_no_weight_without_loss(example: RlExample, denominator: str) -> None:
    assert not token_weights(example, LossConfig(denominator=denominator))[~example.loss_mask].any()  # type: ignore[arg-type]


@pytest.mark.parametrize("denominator", ["token_mean", "sequence_mean"])
def test_means_have_weights_that_sum_to_one(samples: list[Sample], denominator: str) -> None:
    weights = token_weights(pack(samples, tokens_per_row=32), LossConfig(denominator=denominator))  # type: ignore[arg-type]
    assert np.isclose(weights.sum(), 1.0, rtol=1e-12)
