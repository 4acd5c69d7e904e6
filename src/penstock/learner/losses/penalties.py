"""What may be added to any loss: a penalty for leaving a reference policy, and a bonus for entropy."""

from __future__ import annotations

import torch

from penstock.errors import InvariantError
from penstock.learner.config import KlEstimator, LossConfig
from penstock.learner.losses.inputs import LossInputs, ratios_less_one


def penalties(inputs: LossInputs, config: LossConfig) -> torch.Tensor | None:
    """kl_coef KL(policy, reference) - entropy_coef H, per token; None if both coefficients are 0: then nothing is computed, and nothing rounds."""
    if not config.kl_coef and not config.entropy_coef:
        return None
    added_L = torch.zeros_like(inputs.logprobs_L)
    if config.kl_coef:
        added_L = added_L + config.kl_coef * kl_estimates(inputs, config.kl_estimator)
    if config.entropy_coef:
        if inputs.entropies_L is None:
            raise InvariantError("the loss has a bonus for entropy, and the tokens have no entropies")
        added_L = added_L - config.entropy_coef * inputs.entropies_L
    return added_L


def kl_estimates(inputs: LossInputs, estimator: KlEstimator) -> torch.Tensor:
    """Estimates of KL(policy, reference) from one token each, with d = logprob - reference logprob. Schulman 2020, joschu.net/blog/kl-approx.html.

    k1  d                  unbiased; its own gradient is 0 on average, so it is given that of a cost: sg(d) times the gradient of the logprob
    k2  d^2 / 2            biased, never negative; its gradient is that same one, the gradient of the KL when the policy itself sampled
    k3  exp(-d) - 1 + d    unbiased, never negative; its gradient is that of KL(reference, policy) when the policy itself sampled

    >>> tokens = torch.tensor([-1.0, -2.0])
    >>> given = LossInputs(logprobs_L=tokens, behaviour_logprobs_L=tokens, advantages_L=tokens, sample_ids_L=tokens, reference_logprobs_L=tokens - 1)
    >>> [kl_estimates(given, name)[0].item() for name in ("k1", "k2")]
    [1.0, 0.5]
    """
    if inputs.reference_logprobs_L is None:
        raise InvariantError("the loss has a KL to a reference, and the tokens have no reference logprobs")
    differences_L = inputs.logprobs_L - inputs.reference_logprobs_L
    if estimator == "k2":
        return differences_L.square() / 2
    if estimator == "k3":
        return ratios_less_one(inputs.reference_logprobs_L, inputs.logprobs_L) + differences_L
    costs_L = inputs.constant_logprobs_L - inputs.reference_logprobs_L
    return costs_L * (1 + inputs.logprobs_L - inputs.constant_logprobs_L)
