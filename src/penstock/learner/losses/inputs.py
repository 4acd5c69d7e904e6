"""What a loss is given and gives, and the ratios that all of them are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from penstock.learner.config import LossConfig

_LOG_RATIO_LIMIT = 20.0
"""exp(20) is far outside of any bound; without a limit the gradient of an overflowing ratio is NaN even where it is clipped away."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LossInputs:
    """Tokens with loss (`_L`) of one micro-batch. Samples stay together: all tokens of a sample are here, or none."""

    logprobs_L: torch.Tensor
    """Under the weights that are trained; carries the gradient."""
    behaviour_logprobs_L: torch.Tensor
    """The sampler's."""
    advantages_L: torch.Tensor
    sample_ids_L: torch.Tensor
    reference_logprobs_L: torch.Tensor | None = None
    entropies_L: torch.Tensor | None = None
    """Of the distribution that each token was drawn from, in nats. Carries a gradient when the loss has a bonus for it."""
    held_logprobs_L: torch.Tensor | None = None
    """`logprobs_L` as constants, for who varies `logprobs_L` alone to find a gradient by differences; None: `logprobs_L` without their gradient."""

    @property
    def constant_logprobs_L(self) -> torch.Tensor:
        """What weights that must carry no gradient are made of. A loss that uses this and never detaches can be checked by finite differences."""
        return self.logprobs_L.detach() if self.held_logprobs_L is None else self.held_logprobs_L


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenLosses:
    """One loss per token, and what is known about it."""

    losses_L: torch.Tensor
    clipped: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """By name of the bound (`low`, `high`, `dual`): True where the token's gradient is another because its ratio is out of that bound."""


Loss = Callable[[LossInputs, LossConfig], TokenLosses]
"""A pure function. Own losses read their settings from `config.options`."""


def ratios_of(logprobs_L: torch.Tensor, behaviour_logprobs_L: torch.Tensor) -> torch.Tensor:
    """exp(logprob - behaviour logprob), finite with a finite gradient."""
    return _log_ratios(logprobs_L, behaviour_logprobs_L).exp()


def ratios_less_one(logprobs_L: torch.Tensor, behaviour_logprobs_L: torch.Tensor) -> torch.Tensor:
    """`ratios_of` - 1, exact for ratios near 1 too, where the subtraction would leave nothing but rounding."""
    return _log_ratios(logprobs_L, behaviour_logprobs_L).expm1()


def _log_ratios(logprobs_L: torch.Tensor, behaviour_logprobs_L: torch.Tensor) -> torch.Tensor:
    return (logprobs_L - behaviour_logprobs_L).clamp(-_LOG_RATIO_LIMIT, _LOG_RATIO_LIMIT)


def constant_weights(inputs: LossInputs, level: str) -> torch.Tensor:
    """Importance weights without gradient: a ratio for each token, or for each token the product of its sample's ratios (`sequence`)."""
    if level == "token":
        return ratios_of(inputs.constant_logprobs_L, inputs.behaviour_logprobs_L)
    return sample_log_ratios(inputs, mean=False).clamp(max=_LOG_RATIO_LIMIT).exp()


def sample_log_ratios(inputs: LossInputs, *, mean: bool) -> torch.Tensor:
    """For each token, the sum or mean of the log ratios of its sample's tokens with loss, without gradient."""
    log_ratios_L = inputs.constant_logprobs_L - inputs.behaviour_logprobs_L
    _, places_L, counts_S = torch.unique(inputs.sample_ids_L, return_inverse=True, return_counts=True)
    sums_S = torch.zeros(len(counts_S), dtype=log_ratios_L.dtype).index_add(0, places_L, log_ratios_L)
    return (sums_S / counts_S if mean else sums_S)[places_L]


def clipped_surrogate(ratios_L: torch.Tensor, advantages_L: torch.Tensor, bounds: tuple[float, float], dual: float | None) -> TokenLosses:
    """-min(r A, clip(r, low, high) A); for A < 0 and a bound `dual`, no more than -dual A."""
    low, high = bounds
    losses_L = -torch.minimum(ratios_L * advantages_L, ratios_L.clamp(low, high) * advantages_L)
    clipped = {"low": (ratios_L < low) & (advantages_L < 0), "high": (ratios_L > high) & (advantages_L > 0)}
    if dual is not None:
        clipped["dual"] = (ratios_L > dual) & (advantages_L < 0)
        losses_L = torch.where(clipped["dual"], -dual * advantages_L, losses_L)
    return TokenLosses(losses_L=losses_L, clipped={name: where_L.detach() for name, where_L in clipped.items()})
