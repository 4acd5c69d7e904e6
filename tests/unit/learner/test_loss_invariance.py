"""However a batch lies in rows, micro-batches and ranks, every loss has one value and one gradient (N4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.unit.learner.loss_twins import Token, penalty, twin
from transformers import PreTrainedModel

from penstock.batching import pack, rank_rows
from penstock.learner.config import LearnerConfig, LossConfig
from penstock.learner.passes import train
from penstock.types import RlExample, Sample

SampledBy = Callable[..., list[Sample]]
PlainLogprobs = Callable[..., torch.Tensor]

LOSSES = [
    LossConfig(dual_clip=1.3, denominator="sequence_mean"),
    LossConfig(name="gspo", clip_low=0.05, clip_high=0.05, denominator="sequence_mean"),
    LossConfig(name="gspo", clip_low=0.1, clip_high=0.02),
    LossConfig(name="cispo", clip_high=0.2, clip_low=0.1),
    LossConfig(name="reinforce_tis", weight_cap=1.2),
    LossConfig(name="reinforce_tis", weight_level="sequence", weight_cap=1.5, denominator="fixed", fixed_denominator=9.0),
    LossConfig(name="icepop", mask_low=0.8, mask_high=1.2),
    LossConfig(name="icepop", weight_level="sequence"),
    LossConfig(kl_coef=0.3, kl_estimator="k1", entropy_coef=0.2),
    LossConfig(name="gspo", clip_low=0.2, clip_high=0.2, kl_coef=0.3, kl_estimator="k2"),
    LossConfig(name="cispo", kl_coef=0.1, kl_estimator="k3", entropy_coef=0.1, denominator="sequence_mean"),
]
ALL = pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: f"{loss.name}-{loss.weight_level}-{loss.denominator}-{loss.kl_coef}")


def maze(template: Sample, uid: str, path: tuple[int, ...], *parts: list[int], no_loss: int = 0) -> Sample:
    """A prompt and replies to it, of which the first `no_loss` carry their loss elsewhere."""
    ids, lengths = np.concatenate(parts).astype(np.int32), tuple(map(len, parts))
    place = np.arange(len(ids))
    mask = place >= sum(lengths[: 1 + no_loss])
    return replace(
        template,
        environment="maze",
        group_id="maze/0/0",
        rollout_uid=uid,
        path=path,
        lengths=lengths,
        ids=ids,
        loss_mask=mask,
        logprobs=np.zeros(len(ids), np.float32),
        versions=np.where(place >= lengths[0], 0, -1).astype(np.int32),
        advantages=np.where(mask, 0.7, 0).astype(np.float32),
        mixed_kv=np.zeros(len(ids), np.bool_),
    )


@pytest.fixture
def episodes(samples: list[Sample], exact_model: PreTrainedModel, sampled_by: SampledBy) -> list[Sample]:
    """Three groups of replies, and one of two rollouts, of which the second went two ways after its first reply.

    Both ways hang on tokens that carry their loss on the first way. In rows of 18 the first reply also stands beside the other rollout.
    """
    random = np.random.default_rng(5)
    prompt, other, first, left, right = (random.integers(0, 40, length).tolist() for length in (5, 8, 4, 6, 7))
    mazes = [
        maze(samples[0], "straight", (0, 1), prompt, other),
        maze(samples[0], "forked", (0, 1, 2), prompt, first, left),
        maze(samples[0], "forked", (0, 1, 3), prompt, first, right, no_loss=1),
    ]
    given = [*samples, *mazes]
    made = []
    for sample, sampled in zip(given, sampled_by(exact_model, given, noise=0.3), strict=True):
        reference = (sampled.logprobs + random.normal(0, 0.4, len(sample.ids))).astype(np.float32)
        # Tokens that carry their loss elsewhere were sampled too.
        made.append(replace(sampled, versions=sample.versions, arrays={"reference_logprobs": reference}))
    return made


def gradient_of(model: PreTrainedModel) -> torch.Tensor:
    gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])
    model.zero_grad()
    return gradient


def computed(model: PreTrainedModel, example: RlExample, loss: LossConfig, micro_batch_tokens: int) -> tuple[float, torch.Tensor]:
    trained = train(model, example, LearnerConfig(micro_batch_tokens=micro_batch_tokens), loss)
    return float((trained.losses_L * trained.weights_L).sum()), gradient_of(model)


def assert_equal(found: tuple[float, torch.Tensor], expected: tuple[float, torch.Tensor]) -> None:
    assert found[0] == pytest.approx(expected[0], rel=1e-9)
    assert torch.linalg.vector_norm(found[1] - expected[1]) <= 1e-9 * torch.linalg.vector_norm(expected[1])


@ALL
def test_rows_and_micro_batches_are_invisible(exact_model: PreTrainedModel, episodes: list[Sample], loss: LossConfig) -> None:
    expected = computed(exact_model, pack(episodes, tokens_per_row=None), loss, 8192)
    for tokens_per_row, micro_batch_tokens in ((18, 1), (18, 8192), (64, 40)):
        assert_equal(computed(exact_model, pack(episodes, tokens_per_row=tokens_per_row), loss, micro_batch_tokens), expected)


@ALL
@pytest.mark.parametrize(("num_ranks", "micro_batch_tokens"), [(2, 8192), (3, 1)])
def test_a_split_over_ranks_is_invisible(
    exact_model: PreTrainedModel, episodes: list[Sample], loss: LossConfig, num_ranks: int, micro_batch_tokens: int
) -> None:
    """Ranks with different numbers of tokens, each with micro-batches of its own, add up to the update, whose tokens they all divide by."""
    whole = pack(episodes, tokens_per_row=18)
    expected = computed(exact_model, whole, loss, 8192)
    ranks = [rank_rows(whole, rank=rank, num_ranks=num_ranks) for rank in range(num_ranks)]
    num_tokens = [int(rank.loss_mask.sum()) for rank in ranks]
    assert len(set(num_tokens)) == num_ranks
    config = LearnerConfig(micro_batch_tokens=micro_batch_tokens)
    # Gradients pile up in the model as an all-reduce would sum them.
    trained = [train(exact_model, rank, config, loss, update_tokens=sum(num_tokens)) for rank in ranks]
    assert_equal((sum(float((part.losses_L * part.weights_L).sum()) for part in trained), gradient_of(exact_model)), expected)


@ALL
def test_the_loss_of_a_batch_is_the_weighted_sum_of_slow_twins(
    exact_model: PreTrainedModel, episodes: list[Sample], loss: LossConfig, plain_logprobs_of: PlainLogprobs
) -> None:
    tokens, entropies, weights = _tokens(exact_model, episodes, loss, plain_logprobs_of)
    expected = sum(weight * (twin(tokens, place, loss).loss + penalty(tokens[place], entropies[place], loss)[0]) for place, weight in enumerate(weights))
    assert computed(exact_model, pack(episodes, tokens_per_row=18), loss, 1)[0] == pytest.approx(expected, rel=1e-6)


def _tokens(
    model: PreTrainedModel, episodes: Sequence[Sample], loss: LossConfig, plain_logprobs_of: PlainLogprobs
) -> tuple[list[Token], list[float], list[float]]:
    """Tokens with loss, their entropies and their weights, by one plain pass over each sample."""
    tokens, entropies, weights = [], [], []
    num_tokens = sum(int(sample.loss_mask.sum()) for sample in episodes)
    for number, sample in enumerate(episodes):
        own = int(sample.loss_mask.sum())
        divisor = {"token_mean": num_tokens, "sequence_mean": len(episodes) * own, "fixed": loss.fixed_denominator}[loss.denominator]
        with torch.no_grad():
            logprobs = plain_logprobs_of(model, sample)
            vocabulary = _distributions(model, sample)
        for place in np.flatnonzero(sample.loss_mask).tolist():
            reference = float(sample.arrays["reference_logprobs"][place])
            tokens.append(
                Token(
                    sample=number,
                    logprob=logprobs[place - 1].item(),
                    behaviour=float(sample.logprobs[place]),
                    advantage=float(sample.advantages[place]),
                    reference=reference,
                )
            )
            entropies.append(float(-(vocabulary[place - 1].exp() * vocabulary[place - 1]).sum()))
            weights.append(1 / divisor)
    return tokens, entropies, weights


def _distributions(model: PreTrainedModel, sample: Sample) -> torch.Tensor:
    implementation = model.config._attn_implementation
    model.set_attn_implementation("sdpa")
    logits = model(torch.from_numpy(sample.ids.astype(np.int64))[None]).logits[0]
    model.set_attn_implementation(implementation)
    return logits.log_softmax(-1)


def test_a_bonus_for_entropy_makes_the_policy_less_sure(exact_model: PreTrainedModel, episodes: list[Sample]) -> None:
    example = pack([replace(sample, advantages=np.zeros_like(sample.advantages)) for sample in episodes], tokens_per_row=None)
    loss = LossConfig(entropy_coef=1.0)
    before = train(exact_model, example, LearnerConfig(), loss)
    with torch.no_grad():
        for parameter in exact_model.parameters():
            if parameter.grad is not None:
                parameter -= 1e-3 * parameter.grad
    exact_model.zero_grad()
    after = train(exact_model, example, LearnerConfig(), loss)
    assert after.entropies_L.mean() > before.entropies_L.mean()
