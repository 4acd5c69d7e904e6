"""Settings of the learner. No torch here: a run is planned and checked on machines that have none."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from penstock.config.plugins import check_part_name
from penstock.errors import ConfigError

Denominator = Literal["token_mean", "sequence_mean", "fixed"]
WeightLevel = Literal["token", "sequence"]
KlEstimator = Literal["k1", "k2", "k3"]

LOSS_NAMES = ("ppo_clip", "gspo", "cispo", "reinforce_tis", "icepop")
"""The built-in losses, to check a config by where there is no torch to import them with."""
LOSS_ENTRY_POINTS = "penstock.losses"

_CLIPS: dict[str, tuple[float, float]] = {"gspo": (3e-4, 4e-4), "cispo": (1.0, 4.0)}
"""Usual (low, high) of the losses for which 0.2 would be far off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossConfig:
    """What is minimised (`algorithm.loss`)."""

    name: str = "ppo_clip"
    """ppo_clip, gspo, cispo, reinforce_tis or icepop; or an entry point, or `module:function`."""
    clip_low: float | None = None
    """Ratios are clipped below 1 - clip_low (ppo_clip, gspo, cispo). null: what is usual for the loss, 0.2, 0.0003 and 1."""
    clip_high: float | None = None
    """Ratios are clipped above 1 + clip_high (ppo_clip, gspo, cispo). null: what is usual for the loss, 0.2, 0.0004 and 4."""
    dual_clip: float | None = None
    """Ratio above which a token with a negative advantage costs no more (ppo_clip, gspo); 3 is usual. null: no such bound."""
    weight_level: WeightLevel = "token"
    """Whose ratio weighs a token (reinforce_tis, icepop): its own, or the product over its sample."""
    weight_cap: float = 2.0
    """Weights are truncated here (reinforce_tis)."""
    mask_low: float = 0.5
    """Tokens whose weight is below this carry no loss (icepop)."""
    mask_high: float = 5.0
    """Tokens whose weight is above this carry no loss (icepop)."""
    kl_coef: float = 0.0
    """How much a KL to the reference of `learner.reference` counts, per token."""
    kl_estimator: KlEstimator = "k3"
    """How the KL is estimated from sampled tokens."""
    entropy_coef: float = 0.0
    """How much the entropy of the policy is rewarded, per token."""
    denominator: Denominator = "token_mean"
    """What the sum over tokens of the whole update is divided by."""
    fixed_denominator: float = 1.0
    """The constant that `fixed` divides by."""
    options: Mapping[str, str | float | bool] = field(default_factory=dict)
    """Settings of a loss that is not built in."""

    def __post_init__(self) -> None:
        check_part_name(self.name, LOSS_NAMES, LOSS_ENTRY_POINTS, key="algorithm.loss.name")
        if self.clip_low is not None and not 0 <= self.clip_low <= 1:
            raise ConfigError(f"algorithm.loss.clip_low must lie in 0..1, got {self.clip_low}")
        if self.clip_high is not None and not self.clip_high >= 0:
            raise ConfigError(f"algorithm.loss.clip_high must be 0 or more, got {self.clip_high}")
        if self.dual_clip is not None and not self.ratio_bounds[1] < self.dual_clip:
            raise ConfigError(f"algorithm.loss.dual_clip must be above 1 + clip_high = {self.ratio_bounds[1]:g}, got {self.dual_clip}")
        if not self.weight_cap > 0:
            raise ConfigError(f"algorithm.loss.weight_cap must be above 0, got {self.weight_cap}")
        if not 0 <= self.mask_low <= 1 <= self.mask_high:
            raise ConfigError(f"algorithm.loss needs 0 <= mask_low <= 1 <= mask_high, got {self.mask_low} and {self.mask_high}")
        for name in ("kl_coef", "entropy_coef"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"algorithm.loss.{name} must be 0 or more, got {getattr(self, name)}")
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ConfigError(f"algorithm.loss.{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        if not 0 < self.fixed_denominator < math.inf:
            raise ConfigError(f"algorithm.loss.fixed_denominator must be above 0, got {self.fixed_denominator}")
        if self.options and self.name in LOSS_NAMES:
            raise ConfigError(f"algorithm.loss.options are for a loss of your own, got {dict(self.options)} for {self.name}")

    @property
    def ratio_bounds(self) -> tuple[float, float]:
        """Smallest and largest ratio that is not clipped."""
        low, high = _CLIPS.get(self.name, (0.2, 0.2))
        return 1 - (low if self.clip_low is None else self.clip_low), 1 + (high if self.clip_high is None else self.clip_high)


_CHOICES: dict[str, tuple[str, ...]] = {"weight_level": get_args(WeightLevel), "kl_estimator": get_args(KlEstimator), "denominator": get_args(Denominator)}


@dataclass(frozen=True, slots=True, kw_only=True)
class GateConfig:
    """How far sampler and learner may disagree about a logprob, in nats (`learner.gate`). The defaults hold for fp32 on CPU up to 30M parameters."""

    p999_limit: float = 1e-5
    """Bound of 99.9 % of the tokens; 5e-5 suits 135M parameters. More may lie above it only as far as chance explains it, in an update or,
    if that is small, in the last 10,000 tokens."""
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
    reference: str | None = None
    """Whose logprobs the KL of the loss is measured against: `initial`, the weights that the run began with; `stored`, what the rollouts bring as
    `reference_logprobs`; or a model directory. null: nobody's. A model costs one more pass over each batch, and its memory."""
    gate: GateConfig = field(default_factory=GateConfig)

    def __post_init__(self) -> None:
        if self.reference == "":
            raise ConfigError("learner.reference must be initial, stored, a model directory or null, got an empty text")
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


def check_reference(learner: LearnerConfig, loss: LossConfig) -> None:
    """Raise `ConfigError` for a KL to a reference that there is not."""
    if loss.kl_coef > 0 and learner.reference is None:
        raise ConfigError(
            f"algorithm.loss.kl_coef is {loss.kl_coef:g} and learner.reference is null: set it to initial (the weights that the run begins with) "
            "or to a model directory"
        )
