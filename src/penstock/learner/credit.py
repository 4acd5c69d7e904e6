"""Credit: from the facts of fetched groups to samples with advantages. Derived anew whenever it is asked for, never stored.

The learner's loop and `penstock replay` both come through here, so that a replay computes what the run computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from penstock.advantages import estimator
from penstock.batching.filters import Filters, check_filters
from penstock.errors import ConfigError, InvariantError
from penstock.learner.config import LearnerConfig, LossConfig
from penstock.trace import samples
from penstock.types import Float64Array, Group, Plan, Rollout, Sample
from penstock.wire import digest


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmConfig:
    """How credit is given and what is minimised (`algorithm`)."""

    adv_estimator: str = "grpo"
    """Name of an estimator: built-in, an entry point, or `module:function`."""
    options: Mapping[str, str | float | bool] = field(default_factory=dict)
    """Keyword options of the estimator, such as `norm: mean_norm`."""
    shuffle_advantages: bool = False
    """Deal the advantages of a batch out at random: a control that must not learn."""
    filters: Mapping[str, Mapping[str, float] | None] = field(default_factory=dict)
    """Who may train, by name of the filter (zero_variance, reward_range, staleness, over_long, truncated, an entry point, or `module:function`) with
    its options: `filters: {zero_variance: , over_long: {max_tokens: 512}}`."""
    loss: LossConfig = field(default_factory=LossConfig)

    def __post_init__(self) -> None:
        check_filters(self.filter_options)
        try:
            estimator(self.adv_estimator)
        except ValueError as error:
            raise ConfigError(f"algorithm.adv_estimator: {error}") from None

    @property
    def filter_options(self) -> Filters:
        """The filters, each with its options."""
        return {name: options or {} for name, options in self.filters.items()}


def credit(groups: Sequence[Group], plan: Plan, config: AlgorithmConfig) -> list[Sample]:
    """The trainable paths of all members, each with the advantage of its rollout, in the order of the plan."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    advantages_N = advantages(groups, config)
    if config.shuffle_advantages:
        advantages_N = np.random.default_rng([plan.request.seed, plan.update]).permutation(advantages_N)
    return [sample for rollout, advantage in zip(rollouts, advantages_N, strict=True) for sample in samples(rollout, advantages=float(advantage))]


def advantages(groups: Sequence[Group], config: AlgorithmConfig) -> Float64Array:
    """One advantage for each member of each group."""
    rewards_N = np.array([_reward(rollout) for group in groups for rollout in group.rollouts])
    labels_N = np.repeat(np.arange(len(groups)), [len(group.rollouts) for group in groups])
    result: Float64Array = estimator(config.adv_estimator)(rewards_N, labels_N, **config.options)
    return result


def flat_config(algorithm: AlgorithmConfig, learner: LearnerConfig, tokens_per_row: int | None) -> dict[str, str]:
    """Everything that the arithmetic of an update depends on besides its data, by section, for plans."""
    return {"algorithm": str(algorithm), "learner": str(learner), "packing": f"tokens_per_row={tokens_per_row}"}


def config_digest(config: Mapping[str, str]) -> str:
    """Digest of a flat config, for plans."""
    return digest("\n".join(f"{key}={value}" for key, value in sorted(config.items())).encode())


def _reward(rollout: Rollout) -> float:
    if rollout.reward is None:
        raise InvariantError(f"rollout {rollout.rollout_uid} was planned but has no reward")
    return rollout.reward
