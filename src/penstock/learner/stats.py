"""What one update says about itself, over all its tokens and over those of each environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock.learner.passes import TrainedTokens
from penstock.types import BoolArray, Float64Array, RlExample


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenStats:
    """Of some tokens with loss, each counting once. *Ratio*: probability under the weights before the update over the sampler's."""

    tokens: int
    """How many, 1 or more."""
    entropy: float
    """Of the policy before the update, in nats."""
    clip_frac: float
    """Share of tokens that a bound of the loss has touched."""
    clip_fracs: Mapping[str, float] = field(default_factory=dict)
    """The same by bound: `low`, `high`, `dual`."""
    ratio_mean: float
    ratio_min: float
    ratio_max: float
    kl_k1: float
    """Estimate of KL(sampler, learner): mean of -log ratio; unbiased."""
    kl_k2: float
    """Mean of (log ratio)^2 / 2; varies less."""
    kl_k3: float
    """Mean of ratio - 1 - log ratio; unbiased, never negative."""
    kl_reference: float | None = None
    """Estimate (k3) of KL(learner, reference); None without a reference."""
    effective_sample_size: float
    """(sum of ratios)^2 / (tokens * sum of squared ratios): share of the tokens that equally weighted ones would need to tell as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStats(TokenStats):
    """Of a whole update. May hold NaN in a step that was skipped for it."""

    loss: float
    """As minimised, with its denominator and penalties."""
    grad_norm: float
    """Global norm before clipping."""
    lr: float
    packed_tokens: int
    """Tokens in the batch after prefix sharing."""
    lag_mean: float
    """Versions between a token's and the newest at the cut."""
    lag_max: int
    environments: Mapping[str, TokenStats] = field(default_factory=dict)
    """By environment; empty if the batch does not say whose its samples are."""


def step_stats(example: RlExample, trained: TrainedTokens, *, loss: float, grad_norm: float, lr: float, newest_version: int) -> StepStats:
    """Statistics of an update whose tokens with loss were scored as `trained` says."""
    mask_RT = example.loss_mask
    lags_L = newest_version - example.versions[mask_RT]
    everything = _columns(example, trained)
    return StepStats(
        **everything.stats(np.ones(len(lags_L), np.bool_)),
        loss=loss,
        grad_norm=grad_norm,
        lr=lr,
        packed_tokens=int((example.segment_ids > 0).sum()),
        lag_mean=float(lags_L.mean()),
        lag_max=int(lags_L.max()),
        environments={name: TokenStats(**everything.stats(mine_L)) for name, mine_L in _by_environment(example)},
    )


def pooled_stats(updates: Sequence[tuple[RlExample, TrainedTokens]], environment: str | None = None) -> TokenStats | None:
    """Of the tokens with loss of several updates together, or of one environment's among them; None if there are none."""
    chosen_U = [of_environment(example, environment) for example, _ in updates]
    if not any(chosen_L.any() for chosen_L in chosen_U):
        return None
    columns = [_columns(example, trained) for example, trained in updates]
    references = [column.reference_differences_L for column in columns if column.reference_differences_L is not None]
    pooled = _Columns(
        log_ratios_L=np.concatenate([column.log_ratios_L for column in columns]),
        entropies_L=np.concatenate([column.entropies_L for column in columns]),
        clipped={bound: np.concatenate([column.clipped[bound] for column in columns]) for bound in columns[0].clipped},
        reference_differences_L=np.concatenate(references) if len(references) == len(columns) else None,
    )
    return TokenStats(**pooled.stats(np.concatenate(chosen_U)))


def of_environment(example: RlExample, environment: str | None) -> BoolArray:
    """Which tokens with loss are those of an environment; all if it is None."""
    if environment is None:
        return np.ones(int(example.loss_mask.sum()), np.bool_)
    mine_S = np.array([name == environment for name in example.environments], np.bool_)
    return mine_S[example.sample_ids[example.loss_mask]]


def _by_environment(example: RlExample) -> list[tuple[str, BoolArray]]:
    """Names of the environments that have tokens with loss, and which those are."""
    if not example.environments:
        return []
    names, number_S = np.unique(np.array(example.environments), return_inverse=True)
    number_L = number_S[example.sample_ids[example.loss_mask]]
    return [(str(names[number]), number_L == number) for number in np.unique(number_L).tolist()]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Columns:
    """Facts of all tokens with loss."""

    log_ratios_L: Float64Array
    entropies_L: Float64Array
    clipped: Mapping[str, BoolArray]
    reference_differences_L: Float64Array | None
    """Logprob minus the reference's."""

    def stats(self, chosen_L: BoolArray) -> dict[str, Any]:
        """Fields of `TokenStats` over the chosen tokens."""
        log_ratios_L = self.log_ratios_L[chosen_L]
        clipped = {bound: where_L[chosen_L] for bound, where_L in self.clipped.items()}
        any_L = np.logical_or.reduce([np.zeros(len(log_ratios_L), np.bool_), *clipped.values()])
        # A ratio that overflows is a fact to show, not a warning to print.
        with np.errstate(over="ignore"):
            ratios_L = np.exp(log_ratios_L)
            reference = None if self.reference_differences_L is None else _k3(-self.reference_differences_L[chosen_L])
            return {
                "tokens": len(log_ratios_L),
                "entropy": float(self.entropies_L[chosen_L].mean()),
                "clip_frac": float(any_L.mean()),
                "clip_fracs": {bound: float(where_L.mean()) for bound, where_L in clipped.items()},
                "ratio_mean": float(ratios_L.mean()),
                "ratio_min": float(ratios_L.min()),
                "ratio_max": float(ratios_L.max()),
                "kl_k1": float(-log_ratios_L.mean()),
                "kl_k2": float((log_ratios_L**2).mean() / 2),
                "kl_k3": _k3(log_ratios_L),
                "kl_reference": reference,
                "effective_sample_size": _effective_share(log_ratios_L),
            }


def _columns(example: RlExample, trained: TrainedTokens) -> _Columns:
    mask_RT, reference_RT = example.loss_mask, example.reference_logprobs
    return _Columns(
        log_ratios_L=trained.logprobs_L - example.policy_logprobs[mask_RT],
        entropies_L=trained.entropies_L,
        clipped=trained.clipped,
        reference_differences_L=None if reference_RT is None else trained.logprobs_L - reference_RT[mask_RT],
    )


def _k3(log_ratios_L: Float64Array) -> float:
    # Not exp(x) - 1 - x, whose first terms cancel: near the sampler that is all there is.
    return float((np.expm1(log_ratios_L) - log_ratios_L).mean())


def _effective_share(log_ratios_L: Float64Array) -> float:
    """Unchanged when all ratios grow by one factor, so the largest is made 1 and nothing overflows."""
    weights_L = np.exp(log_ratios_L - log_ratios_L.max())
    return float(weights_L.sum() ** 2 / (len(weights_L) * (weights_L**2).sum()))
