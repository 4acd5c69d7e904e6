"""What is minimised: functions from the tokens with loss to one loss per token. `denominators` says how they are averaged.

A new loss is a function of this shape and a line in `LOSSES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches

import torch

from penstock.errors import ConfigError
from penstock.learner.config import LossConfig

_LOG_RATIO_LIMIT = 20.0
"""exp(20) is far outside of any clip; without a limit the gradient of an overflowing ratio is NaN even where it is clipped away."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LossInputs:
    """Tokens with loss (`_L`) of one micro-batch. Samples stay together."""

    logprobs_L: torch.Tensor
    """Under the weights that are trained; carries the gradient."""
    behaviour_logprobs_L: torch.Tensor
    """The sampler's."""
    advantages_L: torch.Tensor
    sample_ids_L: torch.Tensor
    reference_logprobs_L: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenLosses:
    """One loss per token, and what is known about it."""

    losses_L: torch.Tensor
    clipped_L: torch.Tensor
    """True where the token gives no gradient because its ratio is out of bounds."""


Loss = Callable[[LossInputs, LossConfig], TokenLosses]


def ppo_clip(inputs: LossInputs, config: LossConfig) -> TokenLosses:
    """-min(r A, clip(r, 1 - low, 1 + high) A) with r = exp(logprob - behaviour logprob). Schulman et al. 2017, arXiv:1707.06347.

    >>> both = torch.zeros(2)
    >>> inputs = LossInputs(logprobs_L=both, behaviour_logprobs_L=both, advantages_L=torch.tensor([1.0, -2.0]), sample_ids_L=torch.arange(2))
    >>> ppo_clip(inputs, LossConfig()).losses_L
    tensor([-1.,  2.])
    """
    log_ratios_L = (inputs.logprobs_L - inputs.behaviour_logprobs_L).clamp(-_LOG_RATIO_LIMIT, _LOG_RATIO_LIMIT)
    ratios_L = log_ratios_L.exp()
    low, high = 1 - config.clip_low, 1 + config.clip_high
    advantages_L = inputs.advantages_L
    losses_L = -torch.minimum(ratios_L * advantages_L, ratios_L.clamp(low, high) * advantages_L)
    clipped_L = ((ratios_L > high) & (advantages_L > 0)) | ((ratios_L < low) & (advantages_L < 0))
    return TokenLosses(losses_L=losses_L, clipped_L=clipped_L.detach())


LOSSES: dict[str, Loss] = {"ppo_clip": ppo_clip}


def loss_named(name: str) -> Loss:
    """The loss of that name. Raises `ConfigError` that suggests the nearest one."""
    if name not in LOSSES:
        nearest = get_close_matches(name, LOSSES, n=1, cutoff=0.0)
        raise ConfigError(f"algorithm.loss.name {name!r} is unknown, did you mean {nearest[0]!r}")
    return LOSSES[name]
