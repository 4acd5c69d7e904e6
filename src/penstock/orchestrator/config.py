"""The config of a run: every part's section in one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock.config import load
from penstock.envs import environment
from penstock.errors import ConfigError
from penstock.learner.config import LearnerConfig, check_reference
from penstock.learner.credit import AlgorithmConfig
from penstock.orchestrator.rundir import RunDir
from penstock.orchestrator.sections import (
    BatchSection,
    BufferSection,
    FreshnessSection,
    InferenceSection,
    ModelSection,
    RunSection,
    WeightsSection,
)
from penstock.rollout.config import ActorConfig, EnvConfig, EvalConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Everything that `penstock train` reads."""

    run: RunSection
    model: ModelSection
    envs: Mapping[str, EnvConfig]
    """Environments by name."""
    batch: BatchSection
    actor: ActorConfig = field(default_factory=ActorConfig)
    buffer: BufferSection = field(default_factory=BufferSection)
    freshness: FreshnessSection = field(default_factory=FreshnessSection)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    weights: WeightsSection = field(default_factory=WeightsSection)
    inference: InferenceSection = field(default_factory=InferenceSection)
    eval: EvalConfig = field(default_factory=EvalConfig)

    def __post_init__(self) -> None:
        if not self.envs:
            raise ConfigError("envs: there must be at least one environment")
        total = sum(self.fractions.values())
        if total > 1 + 1e-6:
            raise ConfigError(f"envs.<name>.fraction: the fractions add up to {total:g}, which is more than 1")
        if self.freshness.min_group_size > self.actor.group_size:
            raise ConfigError(
                f"freshness.min_group_size is {self.freshness.min_group_size}, but a group has only actor.group_size = {self.actor.group_size} members"
            )
        if self.learner.temperature != self.actor.temperature:
            raise ConfigError(
                f"learner.temperature is {self.learner.temperature} and actor.temperature {self.actor.temperature}: the policy that is trained "
                "must be the one that was sampled from"
            )
        check_reference(self.learner, self.algorithm.loss)
        self._check_credits()

    @property
    def fractions(self) -> dict[str, float]:
        """Shares that were given, by environment."""
        return {name: env.fraction for name, env in self.envs.items() if env.fraction is not None}

    @property
    def run_dir(self) -> RunDir:
        """Where the run lives."""
        return RunDir((self.run.dir / self.run.name).resolve())

    @property
    def credit_tokens(self) -> int | None:
        """Tokens that may be under way at once; more could not all be trained in time. None: groups are counted instead."""
        tokens = self.freshness.tokens_per_update or self.batch.budget_tokens
        return None if tokens is None else (self.freshness.max_lag + 1) * tokens

    @property
    def credit_groups(self) -> int | None:
        """Groups that may be under way at once; None: tokens are counted instead."""
        if self.freshness.tokens_per_update is not None or self.batch.groups_per_update is None:
            return None
        return (self.freshness.max_lag + 1) * self.batch.groups_per_update

    def _check_credits(self) -> None:
        """Refuse credits that would run out before a batch is full."""
        if self.credit_tokens is None:
            return
        group_tokens = self.actor.group_size * self.actor.max_tokens
        if self.batch.budget_tokens is not None:
            needed = min(self.batch.budget_tokens, group_tokens)
        else:
            needed = (self.batch.groups_per_update or 1) * self.actor.group_size
        if self.credit_tokens < needed:
            least = -(-needed // (self.freshness.max_lag + 1))
            raise ConfigError(
                f"freshness.tokens_per_update = {self.freshness.tokens_per_update} gives {self.credit_tokens} credit tokens at max_lag "
                f"{self.freshness.max_lag}, and a batch may need {needed}: no batch would ever be full; give {least} or more"
            )


def load_run(source: Path | str, overrides: Sequence[str] = ()) -> RunConfig:
    """A run's config with its paths made absolute. Raises `ConfigError`, also for an environment or a model directory that is not there."""
    config = load(source, overrides, RunConfig)
    for name, env in config.envs.items():
        try:
            environment(env.kind, env.params)
        except ConfigError as error:
            raise ConfigError(f"envs.{name}: {error}") from None
    model = config.model.path.expanduser().resolve()
    if not (model / "config.json").is_file():
        raise ConfigError(f"model.path: {model} is not a model directory (it has no config.json); `penstock init model {config.model.path}` makes a small one")
    return dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, path=model),
        learner=dataclasses.replace(config.learner, reference=_reference(config.learner.reference)),
        run=dataclasses.replace(config.run, dir=config.run.dir.expanduser().resolve()),
    )


def _reference(reference: str | None) -> str | None:
    """`learner.reference` with its path made absolute. Raises `ConfigError` if there is no model."""
    if reference in (None, "initial", "stored"):
        return reference
    directory = Path(reference).expanduser().resolve()
    if not (directory / "config.json").is_file():
        raise ConfigError(f"learner.reference: {directory} is not a model directory (it has no config.json); initial means the weights the run begins with")
    return str(directory)
