"""Settings of the learner. No torch here: a run is planned and checked on machines that have none."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from penstock.errors import ConfigError

Denominator = Literal["token_mean", "sequence_mean", "fixed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossConfig:
    """What is minimised (`algorithm.loss`)."""

    name: str = "ppo_clip"
    """Key of `penstock.learner.losses.LOSSES`."""
    clip_low: float = 0.2
    """Ratios below 1 - clip_low earn nothing more."""
    clip_high: float = 0.2
    """Ratios above 1 + clip_high earn nothing more."""
    denominator: Denominator = "token_mean"
    """What the sum over tokens of the whole update is divided by."""
    fixed_denominator: float = 1.0
    """The constant that `fixed` divides by."""

    def __post_init__(self) -> None:
        if not 0 <= self.clip_low <= 1:
            raise ConfigError(f"algorithm.loss.clip_low must lie in 0..1, got {self.clip_low}")
        if not self.clip_high >= 0:
            raise ConfigError(f"algorithm.loss.clip_high must be 0 or more, got {self.clip_high}")
        if self.denominator not in ("token_mean", "sequence_mean", "fixed"):
            raise ConfigError(f"algorithm.loss.denominator must be token_mean, sequence_mean or fixed, got {self.denominator!r}")
        if not 0 < self.fixed_denominator < math.inf:
            raise ConfigError(f"algorithm.loss.fixed_denominator must be above 0, got {self.fixed_denominator}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GateConfig:
    """How far sampler and learner may disagree about a logprob, in nats (`learner.gate`). The defaults hold for fp32 on CPU up to 30M parameters."""

    p999_limit: float = 1e-5
    """Bound of 99.9 % of the tokens; 5e-5 suits 135M parameters. More may lie above it in one update only as far as chance explains it."""
    max_limit: float = 1e-4
    """Bound of every token."""

    def __post_init__(self) -> None:
        if not 0 < self.p999_limit <= self.max_limit:
            raise ConfigError(f"learner.gate needs 0 < p999_limit <= max_limit, got {self.p999_limit} and {self.max_limit}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerConfig:
    """How one update is computed (`learner`)."""

    lr: float = 3e-4
    betas: tuple[float, float] = (0.9, 0.99)
    eps: float = 1e-8
    weight_decay: float = 0.0
    warmup_updates: int = 5
    """Updates over which the learning rate rises linearly; constant afterwards."""
    clip_grad: float = 1.0
    """Largest global norm of the gradient; inf clips nothing."""
    micro_batch_tokens: int = 8192
    """Places of the packed batch that are computed at once: bounds memory, changes no result."""
    temperature: float = 1.0
    """Temperature of the training traffic: the policy is what the sampler sampled from."""
    threads: int = 1
    """Torch threads. Part of the arithmetic: another number may round differently."""
    gate: GateConfig = field(default_factory=GateConfig)

    def __post_init__(self) -> None:
        if not 0 <= self.lr < math.inf:
            raise ConfigError(f"learner.lr must be 0 or more, got {self.lr}")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ConfigError(f"learner.betas must be two numbers in 0..1, got {self.betas}")
        if not self.eps > 0:
            raise ConfigError(f"learner.eps must be above 0, got {self.eps}")
        if not self.weight_decay >= 0:
            raise ConfigError(f"learner.weight_decay must be 0 or more, got {self.weight_decay}")
        if self.warmup_updates < 0:
            raise ConfigError(f"learner.warmup_updates must be 0 or more, got {self.warmup_updates}")
        if not self.clip_grad > 0:
            raise ConfigError(f"learner.clip_grad must be above 0, got {self.clip_grad}")
        if self.micro_batch_tokens < 1:
            raise ConfigError(f"learner.micro_batch_tokens must be 1 or more, got {self.micro_batch_tokens}")
        if not 0 < self.temperature < math.inf:
            raise ConfigError(f"learner.temperature must be above 0, got {self.temperature}")
        if self.threads < 1:
            raise ConfigError(f"learner.threads must be 1 or more, got {self.threads}")
