"""Clipped ratios of whole samples."""

from __future__ import annotations

from penstock.learner.config import LossConfig
from penstock.learner.losses.inputs import LossInputs, TokenLosses, clipped_surrogate, ratios_of, sample_log_ratios


def gspo(inputs: LossInputs, config: LossConfig) -> TokenLosses:
    """-min(s A, clip(s, 1 - low, 1 + high) A) with s = exp(mean over the sample's tokens of logprob - behaviour logprob), per token.

    Every token has the value of its sample's ratio and the gradient of its own logprob: s_t = sg(s) p_t / sg(p_t), the paper's token form. With one
    advantage for a sample and the denominator `sequence_mean` value and gradient are those of its sequence form. A sample is clipped whole.
    Zheng et al. 2025, arXiv:2507.18071.

    >>> import torch
    >>> ratios, zeros = torch.tensor([0.5, 0.125]).log(), torch.zeros(2)
    >>> inputs = LossInputs(logprobs_L=ratios, behaviour_logprobs_L=zeros, advantages_L=torch.ones(2), sample_ids_L=torch.zeros(2, dtype=torch.int32))
    >>> gspo(inputs, LossConfig(name="gspo")).losses_L
    tensor([-0.2500, -0.2500])
    """
    # The sampler that would have given every token its sample's mean ratio: ratios to it have the right value and the token's own gradient.
    behaviour_logprobs_L = inputs.constant_logprobs_L - sample_log_ratios(inputs, mean=True)
    return clipped_surrogate(ratios_of(inputs.logprobs_L, behaviour_logprobs_L), inputs.advantages_L, config.ratio_bounds, config.dual_clip)
