"""A loss on a few tokens that are given as numbers, for checks: no model, no torch outside."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from penstock.learner.config import LossConfig
from penstock.learner.losses.inputs import Loss, LossInputs
from penstock.learner.losses.penalties import penalties
from penstock.learner.losses.registry import loss_named
from penstock.types import Float64Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrialTokens:
    """Tokens with loss."""

    logprobs_L: Float64Array
    behaviour_logprobs_L: Float64Array
    advantages_L: Float64Array
    reference_logprobs_L: Float64Array
    sample_ids_L: Float64Array
    """Whole numbers."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TriedTokens:
    """What a loss gave for them."""

    losses_L: Float64Array
    """With penalties."""
    gradient_L: Float64Array
    """Of the sum of losses times weights, by logprob."""
    changed: tuple[str, ...]
    """Inputs that were not afterwards what they were before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialLoss:
    """A loss that was looked up once: it is called thousands of times."""

    function: Loss
    config: LossConfig

    @property
    def plain(self) -> TrialLoss:
        """Without penalties."""
        return replace(self, config=replace(self.config, kl_coef=0.0, entropy_coef=0.0))


def trial_loss(config: LossConfig) -> TrialLoss:
    """The loss that a config names. Raises `ConfigError`."""
    return TrialLoss(function=loss_named(config.name), config=config)


def try_loss(loss: TrialLoss, tokens: TrialTokens, *, weights_L: Float64Array, held_logprobs_L: Float64Array | None = None) -> TriedTokens:
    """Value and gradient in fp64. `held_logprobs_L`: what weights that carry no gradient are made of, for differences.

    ValueError if the loss gives something else than a `TokenLosses` with one loss for each token and one flag for each token and bound.
    """
    given = {
        "logprobs_L": torch.tensor(tokens.logprobs_L, requires_grad=True),
        "behaviour_logprobs_L": torch.tensor(tokens.behaviour_logprobs_L),
        "advantages_L": torch.tensor(tokens.advantages_L),
        "sample_ids_L": torch.tensor(tokens.sample_ids_L.astype(np.int32)),
        "reference_logprobs_L": torch.tensor(tokens.reference_logprobs_L),
        "entropies_L": torch.zeros(len(tokens.logprobs_L), dtype=torch.float64),
    }
    before = {name: tensor.detach().clone() for name, tensor in given.items()}
    held = None if held_logprobs_L is None else torch.tensor(held_logprobs_L)
    inputs = LossInputs(**given, held_logprobs_L=held)
    found = loss.function(inputs, loss.config)
    losses_L = getattr(found, "losses_L", None)
    shape = tuple(before["logprobs_L"].shape)
    if not isinstance(losses_L, torch.Tensor) or tuple(losses_L.shape) != shape:
        raise ValueError(f"gives {type(found).__name__} with losses_L of shape {getattr(losses_L, 'shape', None)} for {shape[0]} tokens")
    for bound, where_L in found.clipped.items():
        if where_L.dtype is not torch.bool or tuple(where_L.shape) != shape:
            raise ValueError(f"clipped[{bound!r}] must hold a bool for each of {shape[0]} tokens, got {where_L.dtype} of shape {tuple(where_L.shape)}")
    added_L = penalties(inputs, loss.config)
    total_L = losses_L if added_L is None else losses_L + added_L
    gradient_L = torch.zeros(shape, dtype=torch.float64)
    if total_L.requires_grad:
        (gradient,) = torch.autograd.grad((total_L * torch.tensor(weights_L)).sum(), given["logprobs_L"], allow_unused=True)
        gradient_L = gradient_L if gradient is None else gradient
    changed = tuple(name for name, tensor in given.items() if not torch.equal(tensor.detach().nan_to_num(), before[name].nan_to_num()))
    return TriedTokens(losses_L=total_L.detach().double().numpy(), gradient_L=gradient_L.numpy(), changed=changed)
