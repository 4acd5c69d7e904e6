"""Clipped ratios."""

from __future__ import annotations

from penstock.learner.config import LossConfig
from penstock.learner.losses.inputs import LossInputs, TokenLosses, clipped_surrogate, ratios_of


def ppo_clip(inputs: LossInputs, config: LossConfig) -> TokenLosses:
    """-min(r A, clip(r, 1 - low, 1 + high) A) with r = exp(logprob - behaviour logprob), per token.

    With `dual_clip` c, a token with A < 0 whose ratio has grown beyond c costs -c A and no more, so that one very unlikely token cannot fill the gradient.
    Schulman et al. 2017, arXiv:1707.06347; separate bounds Yu et al. 2025 (DAPO), arXiv:2503.14476; dual clip Ye et al. 2019, arXiv:1912.09729.

    >>> import torch
    >>> both = torch.zeros(2)
    >>> inputs = LossInputs(logprobs_L=both, behaviour_logprobs_L=both, advantages_L=torch.tensor([1.0, -2.0]), sample_ids_L=torch.arange(2))
    >>> ppo_clip(inputs, LossConfig()).losses_L
    tensor([-1.,  2.])
    """
    ratios_L = ratios_of(inputs.logprobs_L, inputs.behaviour_logprobs_L)
    return clipped_surrogate(ratios_L, inputs.advantages_L, config.ratio_bounds, config.dual_clip)
