"""Importance weights, 0 outside of two bounds."""

from __future__ import annotations

import torch

from penstock.learner.config import LossConfig
from penstock.learner.losses.inputs import LossInputs, TokenLosses, constant_weights


def icepop(inputs: LossInputs, config: LossConfig) -> TokenLosses:
    """-sg(w if mask_low <= w <= mask_high else 0) A logprob, per token, with w as in `reinforce_tis`.

    Where sampler and learner disagree far beyond what learning explains, something else is wrong with the token: it is left out, in both directions.
    The two-sided mask of Ling Team 2025 (Ring-1T), arXiv:2510.18855. Like all losses here it takes one step on each batch, so that the paper's further
    ratio to the weights before the update is 1.

    >>> import torch
    >>> logprobs, behaviour = torch.tensor([-1.0, -2.0, -9.0]), torch.tensor([-1.0, -9.0, -2.0])
    >>> inputs = LossInputs(logprobs_L=logprobs, behaviour_logprobs_L=behaviour, advantages_L=torch.ones(3), sample_ids_L=torch.arange(3))
    >>> icepop(inputs, LossConfig(name="icepop")).losses_L
    tensor([1., 0., 0.])
    """
    weights_L = constant_weights(inputs, config.weight_level)
    clipped = {"low": weights_L < config.mask_low, "high": weights_L > config.mask_high}
    kept_L = torch.where(clipped["low"] | clipped["high"], 0.0, weights_L)
    return TokenLosses(losses_L=-kept_L * inputs.advantages_L * inputs.logprobs_L, clipped=clipped)
