"""Clipped ratios as constant weights."""

from __future__ import annotations

from penstock.learner.config import LossConfig
from penstock.learner.losses.inputs import LossInputs, TokenLosses, constant_weights


def cispo(inputs: LossInputs, config: LossConfig) -> TokenLosses:
    """-sg(clip(r, 1 - low, 1 + high)) A logprob with r = exp(logprob - behaviour logprob), per token.

    What is clipped is the weight of a token and not its gradient, so that rare tokens that became likelier go on learning. By default there is
    no lower bound. The upper one, 5, is a choice of ours. MiniMax 2025 (MiniMax-M1), arXiv:2506.13585.

    >>> import torch
    >>> logprobs, zeros = torch.tensor([-1.0, -2.0]), torch.tensor([-1.0, -9.0])
    >>> inputs = LossInputs(logprobs_L=logprobs, behaviour_logprobs_L=zeros, advantages_L=torch.ones(2), sample_ids_L=torch.arange(2))
    >>> cispo(inputs, LossConfig(name="cispo", clip_high=4.0)).losses_L
    tensor([ 1., 10.])
    """
    low, high = config.ratio_bounds
    ratios_L = constant_weights(inputs, "token")
    losses_L = -ratios_L.clamp(low, high) * inputs.advantages_L * inputs.logprobs_L
    return TokenLosses(losses_L=losses_L, clipped={"low": ratios_L < low, "high": ratios_L > high})
