"""What one update says about itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.learner.passes import TrainedTokens
from penstock.types import RlExample


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStats:
    """Means run over the tokens with loss, each counting once. May hold NaN in a step that was skipped for it."""

    loss: float
    """As minimised, with its denominator."""
    entropy: float
    """Of the policy before the update, in nats."""
    grad_norm: float
    """Global norm before clipping."""
    lr: float
    clip_frac: float
    """Share of tokens whose ratio is out of bounds and gives no gradient."""
    ratio_mean: float
    """Ratio: probability under the weights before the update over the sampler's."""
    ratio_min: float
    ratio_max: float
    kl: float
    """Estimate of KL(sampler, learner): mean of ratio - 1 - log ratio, never negative."""
    tokens: int
    """Tokens with loss."""
    packed_tokens: int
    """Tokens in the batch after prefix sharing."""
    lag_mean: float
    """Versions between a token's and the newest at the cut."""
    lag_max: int


def step_stats(example: RlExample, trained: TrainedTokens, *, loss: float, grad_norm: float, lr: float, newest_version: int) -> StepStats:
    """Statistics of an update whose tokens with loss were scored as `trained` says."""
    log_ratios_L = trained.logprobs_L - example.policy_logprobs[example.loss_mask]
    lags_L = newest_version - example.versions[example.loss_mask]
    # A ratio that overflows is a fact to show, not a warning to print.
    with np.errstate(over="ignore"):
        ratios_L = np.exp(log_ratios_L)
    return StepStats(
        loss=loss,
        entropy=float(trained.entropies_L.mean()),
        grad_norm=grad_norm,
        lr=lr,
        clip_frac=float(trained.clipped_L.mean()),
        ratio_mean=float(ratios_L.mean()),
        ratio_min=float(ratios_L.min()),
        ratio_max=float(ratios_L.max()),
        kl=float((ratios_L - 1 - log_ratios_L).mean()),
        tokens=len(log_ratios_L),
        packed_tokens=int((example.segment_ids > 0).sum()),
        lag_mean=float(lags_L.mean()),
        lag_max=int(lags_L.max()),
    )
