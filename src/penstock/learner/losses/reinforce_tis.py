"""REINFORCE with truncated importance weights."""

from __future__ import annotations

from penstock.learner.config import LossConfig
from penstock.learner.losses.inputs import LossInputs, TokenLosses, constant_weights


def reinforce_tis(inputs: LossInputs, config: LossConfig) -> TokenLosses:
    """-sg(min(w, weight_cap)) A logprob, per token.

    w is the token's ratio exp(logprob - behaviour logprob), or with `weight_level: sequence` the product of the ratios of its sample: the weight that
    makes the gradient unbiased, and varies most. The cap trades bias for variance. Williams 1992, doi:10.1007/BF00992696; truncated weights
    Ionides 2008, doi:10.1198/106186008X320456.

    >>> import torch
    >>> logprobs, behaviour = torch.tensor([-1.0, -2.0]), torch.tensor([-1.0, -9.0])
    >>> inputs = LossInputs(logprobs_L=logprobs, behaviour_logprobs_L=behaviour, advantages_L=torch.ones(2), sample_ids_L=torch.arange(2))
    >>> reinforce_tis(inputs, LossConfig(name="reinforce_tis", weight_cap=3.0)).losses_L
    tensor([1., 6.])
    """
    weights_L = constant_weights(inputs, config.weight_level)
    losses_L = -weights_L.clamp(max=config.weight_cap) * inputs.advantages_L * inputs.logprobs_L
    return TokenLosses(losses_L=losses_L, clipped={"high": weights_L > config.weight_cap})
