"""What each part of a run is told: the run's config, as the part's own."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.batching.filters import FILTERS
from penstock.config import server_root
from penstock.errors import ConfigError
from penstock.orchestrator.config import RunConfig
from penstock.orchestrator.rundir import RunDir
from penstock.rollout.config import WorkerConfig
from penstock.types import CutRequest, Laws

if TYPE_CHECKING:
    from penstock.learner.process import LearnerProcessConfig


def laws(config: RunConfig) -> Laws:
    """The rules that the buffer applies to the run."""
    freshness = config.freshness
    return Laws(
        max_lag=freshness.max_lag,
        min_group_size=freshness.min_group_size,
        max_retries=freshness.max_retries,
        max_reuse=freshness.max_reuse,
        credit_tokens=config.credit_tokens or 1,
        credit_groups=config.credit_groups,
        fractions=config.fractions,
        endangered=freshness.endangered,
        filters={name: options for name, options in config.algorithm.filter_options.items() if name in FILTERS},
        capacity_rollouts=config.buffer.capacity_rollouts,
    )


def cut_request(config: RunConfig) -> CutRequest:
    """What every cut of the run asks for."""
    batch = config.batch
    return CutRequest(
        budget_tokens=batch.budget_tokens,
        groups_per_update=batch.groups_per_update,
        fractions=config.fractions,
        order=batch.order,
        unallocated=batch.unallocated,
        short=batch.short,
        spill_after_seconds=batch.spill_after_seconds,
        seed=config.run.seed,
    )


def learner_config(config: RunConfig, run_dir: Path, buffer_url: str, servers: tuple[str, ...], *, owner: str, replaces: str | None) -> LearnerProcessConfig:
    """What a learner's process is told. Loads torch."""
    from penstock.learner.process import LearnerProcessConfig, plan_request

    libraries = {name: metadata.version(name) for name in ("numpy", "penstock", "torch", "transformers")}
    return LearnerProcessConfig(
        run=config.run.name,
        run_dir=run_dir,
        model=config.model.path,
        buffer_url=buffer_url,
        servers=servers,
        updates=config.run.updates,
        laws=laws(config),
        request=plan_request(cut_request(config), config.algorithm, config.learner, libraries, tokens_per_row=config.batch.tokens_per_row),
        algorithm=config.algorithm,
        learner=config.learner,
        tokens_per_row=config.batch.tokens_per_row,
        checkpoint_every=config.weights.checkpoint_every_updates,
        checkpoints_kept=config.weights.checkpoints_kept,
        batch_deadline_seconds=config.run.give_up_seconds,
        owner=owner,
        replaces=replaces,
    )


def worker_config(config: RunConfig, run_dir: Path, environment: str, name: str, buffer_url: str, servers: tuple[str, ...]) -> WorkerConfig:
    """What a worker's process is told. Raises `ConfigError` for an environment that the run does not have."""
    if environment not in config.envs:
        raise ConfigError(f"--env: the run has no environment {environment!r}; it has {', '.join(config.envs)}")
    return WorkerConfig(
        buffer_url=buffer_url,
        run=config.run.name,
        servers=tuple(server_root("--server", url) for url in servers),
        model=config.model.path,
        environment=environment,
        env=config.envs[environment],
        actor=config.actor,
        name=name,
        acks=RunDir(run_dir).acks / f"{name}.log",
        metrics=RunDir(run_dir).metrics,
        view=RunDir(run_dir).workers / f"{name}.json",
        seed=config.run.seed,
    )
