"""Credit: from the facts of fetched groups to samples with advantages. Derived anew whenever it is asked for, never stored.

The learner's loop and `penstock replay` both come through here, so that a replay computes what the run computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock.advantages import Declaration, declared
from penstock.advantages.config import GigpoConfig, RlvcrConfig
from penstock.batching.filters import Filters, check_filters
from penstock.config import check_range
from penstock.errors import ConfigError
from penstock.learner.config import LearnerConfig, LossConfig
from penstock.learner.credit_rows import CreditRows, credit_rows
from penstock.trace import samples
from penstock.types import Float64Array, Group, Plan, Sample
from penstock.wire import digest


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmConfig:
    """How credit is given and what is minimised (`algorithm`)."""

    adv_estimator: str = "grpo"
    """Name of an estimator: built-in, an entry point, or `module:function`."""
    options: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    """Keyword options of an estimator without a section of its own, such as `norm: mean_norm`."""
    gigpo: GigpoConfig = field(default_factory=GigpoConfig)
    rlvcr: RlvcrConfig = field(default_factory=RlvcrConfig)
    pass_at_k: int | None = None
    """Shape the rewards of each group so that the best of so many tries counts, before the estimator sees them; null: each try counts for itself."""
    shuffle_advantages: bool = False
    """Deal the advantages of a batch out at random: a control that must not learn."""
    filters: Mapping[str, Mapping[str, float] | None] = field(default_factory=dict)
    """Who may train, by name of the filter (zero_variance, reward_range, staleness, over_long, truncated, an entry point, or `module:function`) with
    its options: `filters: {zero_variance: , over_long: {max_tokens: 512}}`."""
    loss: LossConfig = field(default_factory=LossConfig)

    def __post_init__(self) -> None:
        check_filters(self.filter_options)
        check_range("pass_at_k", self.pass_at_k, least=1)
        twice = sorted(self.options.keys() & self._section().keys())
        if twice:
            raise ConfigError(f"algorithm.options.{twice[0]}: write it as algorithm.{self.adv_estimator}.{twice[0]}")
        try:
            self.estimator.check_options(self.estimator_options)
        except ValueError as error:
            raise ConfigError(f"algorithm.adv_estimator: {error}") from None
        except Exception as error:  # whatever a user's own function does when it is tried
            raise ConfigError(f"algorithm.adv_estimator: {self.adv_estimator} fails on two rows: {type(error).__name__}: {error}") from error

    @property
    def estimator(self) -> Declaration:
        """The estimator with what it needs."""
        return declared(self.adv_estimator)

    @property
    def estimator_options(self) -> dict[str, Any]:
        """Its keyword options, from its own section and from `options`."""
        return {**self._section(), **self.options}

    def _section(self) -> dict[str, Any]:
        match self.adv_estimator:
            case "gigpo":
                return self.gigpo.options()
            case "rlvcr":
                return self.rlvcr.options()
            case _:
                return {}

    @property
    def filter_options(self) -> Filters:
        """The filters, each with its options."""
        return {name: options or {} for name, options in self.filters.items()}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Credited:
    """Samples with advantages, and what they were made of."""

    samples: list[Sample]
    """The trainable paths of all members, in the order of the plan, each token with the advantage of its rollout or of the step it belongs to."""
    rows: CreditRows


def credit(groups: Sequence[Group], plan: Plan, config: AlgorithmConfig) -> list[Sample]:
    """The samples of the groups of a plan."""
    return credited(groups, plan, config).samples


def credited(groups: Sequence[Group], plan: Plan, config: AlgorithmConfig) -> Credited:
    """The samples of the groups of a plan, with the rows that were compared."""
    rows, advantages_N = advantages(groups, config)
    trained_M = np.flatnonzero(rows.trains_N)
    given_M = advantages_N[trained_M]
    if config.shuffle_advantages:
        given_M = np.random.default_rng([plan.request.seed, plan.update]).permutation(given_M)
    whole: dict[int, float] = {}
    by_message: list[dict[int, float]] = [{} for _ in rows.rollouts]
    for row, advantage in zip(trained_M.tolist(), given_M.tolist(), strict=True):
        number, mark = rows.rollout_N[row], rows.mark_N[row]
        if mark is None:
            whole[number] = advantage
        else:
            by_message[number][mark] = advantage
    train_injected = config.estimator.facts.trains_injected
    given = [
        sample
        for number, rollout in enumerate(rows.rollouts)
        for sample in samples(rollout, advantages=whole.get(number, by_message[number]), train_injected=train_injected)
    ]
    return Credited(samples=given, rows=rows)


def advantages(groups: Sequence[Group], config: AlgorithmConfig) -> tuple[CreditRows, Float64Array]:
    """The rows that the estimator compares, and the advantage of each."""
    rows = credit_rows(groups, config.estimator, config.gigpo, pass_at_k=config.pass_at_k, signal=config.rlvcr.signal)
    return rows, config.estimator.apply(rows.columns, config.estimator_options)


def flat_config(algorithm: AlgorithmConfig, learner: LearnerConfig, tokens_per_row: int | None) -> dict[str, str]:
    """Everything that the arithmetic of an update depends on besides its data, by section, for plans."""
    return {"algorithm": str(algorithm), "learner": str(learner), "packing": f"tokens_per_row={tokens_per_row}"}


def config_digest(config: Mapping[str, str]) -> str:
    """Digest of a flat config, for plans."""
    return digest("\n".join(f"{key}={value}" for key, value in sorted(config.items())).encode())
