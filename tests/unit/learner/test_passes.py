"""Packing, prefix sharing and micro-batching must be invisible (N4): loss and gradient equal those of separate passes over each sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from penstock.batching import pack
from penstock.learner.config import Denominator, LearnerConfig, LossConfig
from penstock.learner.passes import assess, assess_stored, logprobs_of, train
from penstock.types import RlExample, Sample

PlainLogprobs = Callable[..., torch.Tensor]
SampledBy = Callable[..., list[Sample]]


def separately(model: PreTrainedModel, samples: Sequence[Sample], loss: LossConfig, plain_logprobs_of: PlainLogprobs) -> tuple[float, torch.Tensor]:
    """Loss and gradient by one plain pass for each sample and the formulas written out."""
    model.zero_grad()
    num_tokens = sum(int(sample.loss_mask.sum()) for sample in samples)
    total = torch.zeros((), dtype=torch.float64)
    for sample in samples:
        own = int(sample.loss_mask.sum())
        divisor = {"token_mean": num_tokens, "sequence_mean": len(samples) * own, "fixed": loss.fixed_denominator}[loss.denominator]
        logprobs = plain_logprobs_of(model, sample)
        for place in np.flatnonzero(sample.loss_mask).tolist():
            ratio = (logprobs[place - 1] - float(sample.logprobs[place])).exp()
            advantage = float(sample.advantages[place])
            gain = torch.minimum(ratio * advantage, ratio.clamp(*loss.ratio_bounds) * advantage)
            total = total - gain / divisor
    total.backward()
    return total.item(), gradient_of(model)


def gradient_of(model: PreTrainedModel) -> torch.Tensor:
    gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])
    model.zero_grad()
    return gradient


def packed(model: PreTrainedModel, example: RlExample, loss: LossConfig, micro_batch_tokens: int = 8192) -> tuple[float, torch.Tensor]:
    trained = train(model, example, LearnerConfig(micro_batch_tokens=micro_batch_tokens), loss)
    return float((trained.losses_L * trained.weights_L).sum()), gradient_of(model)


def assert_equal(found: tuple[float, torch.Tensor], expected: tuple[float, torch.Tensor], tolerance: float) -> None:
    assert found[0] == pytest.approx(expected[0], rel=tolerance)
    assert torch.linalg.vector_norm(found[1] - expected[1]) <= tolerance * torch.linalg.vector_norm(expected[1])


@pytest.mark.parametrize("denominator", ["token_mean", "sequence_mean", "fixed"])
def test_in_fp64_shared_prefixes_give_the_loss_and_gradient_of_separate_passes(
    exact_model: PreTrainedModel, samples: list[Sample], sampled_by: SampledBy, plain_logprobs_of: PlainLogprobs, denominator: Denominator
) -> None:
    loss = LossConfig(denominator=denominator, fixed_denominator=17.0, clip_low=0.1, clip_high=0.3)
    given = sampled_by(exact_model, samples, noise=0.3)
    found = packed(exact_model, pack(given, tokens_per_row=64), loss)
    assert_equal(found, separately(exact_model, given, loss, plain_logprobs_of), 1e-9)


def test_in_fp32_they_agree_to_1e_6(model: PreTrainedModel, samples: list[Sample], sampled_by: SampledBy, plain_logprobs_of: PlainLogprobs) -> None:
    # Weights of the size that training gives: the fixture's are so large that fp32 itself is 2e-6 away from the truth, however it is computed.
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(0.3)
    given = sampled_by(model, samples, noise=0.3)
    found = packed(model, pack(given, tokens_per_row=64), LossConfig())
    assert_equal(found, separately(model, given, LossConfig(), plain_logprobs_of), 1e-6)


@pytest.mark.parametrize("denominator", ["token_mean", "sequence_mean", "fixed"])
def test_rows_and_micro_batches_are_invisible(
    exact_model: PreTrainedModel,
    samples: list[Sample],
    sampled_by: SampledBy,
    one_sample_a_row: Callable[[Sequence[Sample]], RlExample],
    denominator: Denominator,
) -> None:
    loss = LossConfig(denominator=denominator)
    given = sampled_by(exact_model, samples, noise=0.3)
    expected = packed(exact_model, one_sample_a_row(given), loss)
    for tokens_per_row, micro_batch_tokens in ((24, 1), (24, 48), (40, 1), (None, 8192)):
        assert_equal(packed(exact_model, pack(given, tokens_per_row=tokens_per_row), loss, micro_batch_tokens), expected, 1e-9)


def test_scored_tokens_come_in_the_order_of_the_batch_whatever_the_micro_batches(model: PreTrainedModel, samples: list[Sample]) -> None:
    example = pack(samples, tokens_per_row=24)
    assert len(example.input_ids) > 2
    at_once, row_by_row = (logprobs_of(model, example, example.loss_mask, LearnerConfig(micro_batch_tokens=tokens)) for tokens in (8192, 1))
    np.testing.assert_allclose(at_once, row_by_row, rtol=1e-5)


def test_scoring_a_part_gives_that_part_of_the_whole(model: PreTrainedModel, samples: list[Sample]) -> None:
    example = pack(samples, tokens_per_row=64)
    whole = np.zeros(example.loss_mask.shape)
    whole[example.loss_mask] = logprobs_of(model, example, example.loss_mask, LearnerConfig())
    wanted = example.loss_mask & (np.cumsum(example.loss_mask).reshape(example.loss_mask.shape) % 3 == 0)
    np.testing.assert_allclose(logprobs_of(model, example, wanted, LearnerConfig()), whole[wanted], rtol=1e-5)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_an_assessment_says_what_training_says_and_leaves_no_gradient(model: PreTrainedModel, samples: list[Sample], sampled_by: SampledBy) -> None:
    loss, config = LossConfig(clip_low=0.1, entropy_coef=0.01, denominator="sequence_mean"), LearnerConfig(micro_batch_tokens=64)
    example = pack(sampled_by(model, samples, noise=0.3), tokens_per_row=64)
    assessed = assess(model, example, config, loss)
    assert all(parameter.grad is None for parameter in model.parameters())
    trained = train(model, example, config, loss)
    for name in ("logprobs_L", "entropies_L", "losses_L", "weights_L"):
        assert np.array_equal(getattr(assessed, name), getattr(trained, name)), name
    assert {bound: int(where_L.sum()) for bound, where_L in assessed.clipped.items()} == {
        bound: int(where_L.sum()) for bound, where_L in trained.clipped.items()
    }


def test_under_the_stored_logprobs_a_loss_is_minus_the_advantage(model: PreTrainedModel, samples: list[Sample], sampled_by: SampledBy) -> None:
    example = pack(sampled_by(model, samples, noise=0.3), tokens_per_row=64)
    stored = assess_stored(example, LossConfig())
    assert np.array_equal(stored.losses_L, -example.advantages[example.loss_mask].astype(np.float64))
    assert np.array_equal(stored.logprobs_L, example.policy_logprobs[example.loss_mask].astype(np.float64))
    assert stored.weights_L.sum() == pytest.approx(1)
