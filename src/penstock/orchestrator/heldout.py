"""What `penstock eval` does: one version of a run's weights on the held-out problems of all its environments."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from penstock.buffer.client import BufferClient
from penstock.errors import ConfigError
from penstock.orchestrator.agents import eval_agents
from penstock.orchestrator.config import RunConfig
from penstock.rollout.evaluate import EvalResult, EvaluationConfig, evaluate


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """How well one version does."""

    version: int
    digest: str
    greedy: float | None
    """Mean over environments."""
    sampled: float | None
    """Mean over environments, of the mean over samples."""
    environments: Mapping[str, EvalResult]


async def evaluate_version(
    config: RunConfig, *, version: int, digest: str, weights_dir: Path, environments: Sequence[str] = (), buffer: BufferClient | None = None
) -> Evaluated:
    """Evaluate the weights `<weights_dir>/<digest>.safetensors`, which the run calls `version`, on all environments or on those that are named.

    With `buffer`, the run's own, every episode is stored there in a group of purpose `eval`, which is never cut.
    """
    unknown = sorted(set(environments) - set(config.envs))
    if unknown:
        raise ConfigError(f"--env: the run has no environment {unknown[0]!r}; it has {', '.join(config.envs)}")
    results = {}
    for name in environments or config.envs:
        wanted = EvaluationConfig(
            model=config.model.path,
            environment=name,
            env=config.envs[name],
            weights_dir=weights_dir,
            digest=digest,
            version=version,
            actor=config.actor,
            eval=config.eval,
            seed=config.run.seed,
            threads=config.inference.threads,
        )
        results[name] = await evaluate(wanted, buffer=buffer, acks=config.run_dir.acks / "eval.log", agents=eval_agents)
    return Evaluated(
        version=version,
        digest=digest,
        greedy=_mean([result.greedy for result in results.values()]),
        sampled=_mean([result.avg_at_k for result in results.values()]),
        environments=results,
    )


def write_evaluated(path: Path, found: Evaluated) -> None:
    """Write a result, whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    temporary.replace(path)


def describe_evaluated(found: Evaluated) -> str:
    """A result in words."""
    lines = [f"version {found.version} ({found.digest})"]
    for name, result in found.environments.items():
        passes = ", ".join(f"pass@{k} {value:.3f}" for k, value in result.pass_at.items())
        lines.append(f"  {name}: {result.num_problems} problems, greedy {_show(result.greedy)}, avg@{result.num_samples} {_show(result.avg_at_k)}, {passes}")
        lines += [f"    {count} episodes failed: {error}" for error, count in result.errors.items()]
    return "\n".join(lines)


def _mean(values: Sequence[float | None]) -> float | None:
    """None if one of them is missing: a mean over the others would be another thing."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def _show(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
