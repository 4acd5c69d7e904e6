from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from penstock.batching import pack
from penstock.learner.passes import TrainedTokens
from penstock.learner.stats import step_stats
from penstock.types import Sample


def trained(logprobs: list[float], clipped: dict[str, list[bool]]) -> TrainedTokens:
    count = len(logprobs)
    return TrainedTokens(
        logprobs_L=np.array(logprobs),
        entropies_L=np.arange(count, dtype=np.float64),
        losses_L=np.zeros(count),
        weights_L=np.full(count, 1 / count),
        clipped={bound: np.array(where) for bound, where in clipped.items()},
    )


@pytest.fixture
def two_environments(samples: list[Sample]) -> list[Sample]:
    """Two tokens with loss of a maze and two of a sum, all with a sampler's logprob of -2 and a reference's of -1."""

    def cut(sample: Sample, environment: str, group: str) -> Sample:
        ids = sample.ids[:5]
        mask = np.arange(5) >= 3
        return replace(
            sample,
            environment=environment,
            group_id=group,
            path=(0, 1),
            lengths=(3, 2),
            ids=ids,
            loss_mask=mask,
            logprobs=np.where(mask, -2, 0).astype(np.float32),
            versions=np.where(mask, 0, -1).astype(np.int32),
            advantages=mask.astype(np.float32),
            mixed_kv=np.zeros(5, np.bool_),
            arrays={"reference_logprobs": np.full(5, -1, np.float32)},
        )

    return [cut(samples[8], "maze", "a/0/0"), cut(samples[4], "sums", "b/0/0")]


def test_statistics_by_hand(two_environments: list[Sample]) -> None:
    example = pack(two_environments, tokens_per_row=None)
    # Ratios 1, 2, 1/2 and 1.
    log_two = math.log(2)
    found = step_stats(
        example,
        trained([-2.0, -2 + log_two, -2 - log_two, -2.0], {"low": [False, False, True, False], "high": [False, True, False, False]}),
        loss=0.25,
        grad_norm=1.5,
        lr=1e-3,
        newest_version=2,
    )
    assert (found.loss, found.grad_norm, found.lr, found.lag_mean, found.lag_max) == (0.25, 1.5, 1e-3, 2, 2)
    assert (found.tokens, found.entropy, found.clip_frac, found.clip_fracs) == (4, 1.5, 0.5, {"low": 0.25, "high": 0.25})
    assert (found.ratio_mean, found.ratio_min, found.ratio_max) == (pytest.approx(4.5 / 4), pytest.approx(0.5), pytest.approx(2.0))
    assert found.kl_k1 == pytest.approx(0, abs=1e-12)
    assert found.kl_k2 == pytest.approx(log_two**2 / 4)
    assert found.kl_k3 == pytest.approx((1 - log_two - 0.5 + log_two) / 4)
    assert found.effective_sample_size == pytest.approx(4.5**2 / (4 * 6.25))
    differences = [-1.0, -1 + log_two, -1 - log_two, -1.0]
    assert found.kl_reference == pytest.approx(sum(math.exp(-d) - 1 + d for d in differences) / 4)


def test_environments_have_statistics_of_their_own_tokens(two_environments: list[Sample]) -> None:
    example = pack(two_environments, tokens_per_row=None)
    found = step_stats(
        example,
        trained([-2.0, -2 + math.log(2), -2.0, -2.0], {"high": [False, True, False, False]}),
        loss=0.0,
        grad_norm=0.0,
        lr=0.0,
        newest_version=0,
    )
    maze, sums = found.environments["maze"], found.environments["sums"]
    assert (maze.tokens, maze.entropy, maze.clip_fracs, maze.ratio_max) == (2, 0.5, {"high": 0.5}, pytest.approx(2))
    assert maze.effective_sample_size == pytest.approx(9 / (2 * 5))
    assert (sums.tokens, sums.entropy, sums.clip_frac, sums.ratio_max, sums.effective_sample_size) == (2, 2.5, 0, 1, 1)


def test_a_ratio_that_overflows_is_shown_without_a_warning(two_environments: list[Sample]) -> None:
    example = pack([replace(sample, logprobs=np.where(sample.loss_mask, -1000, 0).astype(np.float32)) for sample in two_environments], tokens_per_row=None)
    found = step_stats(example, trained([-1.0] * 4, {}), loss=0.0, grad_norm=0.0, lr=0.0, newest_version=0)
    assert found.ratio_max == math.inf
    assert (found.effective_sample_size, found.clip_frac) == (1, 0)
