"""Which processes a run consists of, and the words that start each. Pure but for the question who held the last term."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.orchestrator.config import RunConfig
from penstock.orchestrator.rundir import RunDir
from penstock.process.child import ChildSpec
from penstock.types import Version

PROGRAM = (sys.executable, "-m", "penstock")
SPARE_MODULES = ("penstock.learner.process", "penstock.orchestrator.config")
"""What a waiting learner has imported, besides what its model needs."""
_READY_SECONDS = 120.0
_ARCHIVE_WORDS = ("after_seconds", "rollouts_per_file", "most_wait_seconds", "every_seconds", "keep_seconds", "keep_bytes")

Owners = Callable[[int], Awaitable[Sequence[str]]]
"""For the n-th start of the learner: the words that name it, and the life before it that is known to be dead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Where the servers of a run listen, from its start to its end."""

    buffer: int
    servers: tuple[int, ...]

    @property
    def buffer_url(self) -> str:
        """Of the buffer."""
        return _url(self.buffer)

    @property
    def server_urls(self) -> tuple[str, ...]:
        """Of the inference servers."""
        return tuple(_url(port) for port in self.servers)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """The processes of a run."""

    buffer: ChildSpec
    learner: ChildSpec
    servers: tuple[ChildSpec, ...]
    workers: tuple[ChildSpec, ...]


def plan_run(config: RunConfig, run_dir: RunDir, ports: Ports, owners: Owners) -> RunPlan:
    """The processes that `config` means."""
    return RunPlan(
        buffer=_spec(run_dir, "buffer", _buffer_words(config, run_dir, ports), url=ports.buffer_url),
        learner=_learner(config, run_dir, ports, owners),
        servers=tuple(
            _spec(run_dir, f"server-{number}", _server_words(config, run_dir, ports, port), threads=config.inference.threads, url=_url(port))
            for number, port in enumerate(ports.servers)
        ),
        workers=tuple(
            _spec(run_dir, f"worker-{env}-{number}", _worker_words(run_dir, ports, env, f"worker-{env}-{number}"))
            for env in config.envs
            for number in range(config.envs[env].replicas)
        ),
    )


def eval_child(config: RunConfig, run_dir: RunDir, update: int, version: Version, buffer_url: str) -> ChildSpec:
    """A process that evaluates `version`, the newest after `update` updates, from a copy of its file among the results, and ends.

    Its episodes are stored in the buffer, as groups that are never cut.
    """
    words = ["eval", str(run_dir.path), "--update", str(update), "--out", str(eval_result(run_dir, update))]
    words += ["--version", str(version.version), "--digest", version.digest, "--weights-dir", str(run_dir.evals), "--buffer", buffer_url]
    return _spec(run_dir, f"eval-{update}", words, threads=config.inference.threads, log="eval", ends=True)


def eval_result(run_dir: RunDir, update: int) -> Path:
    """Where the result of an evaluation is."""
    return run_dir.evals / f"update_{update}.json"


def _learner(config: RunConfig, run_dir: RunDir, ports: Ports, owners: Owners) -> ChildSpec:
    words = ["learner", str(run_dir.path), "--buffer", ports.buffer_url, *(word for url in ports.server_urls for word in ("--server", url))]

    async def arguments(start: int) -> Sequence[str]:
        return [*words, *await owners(start)]

    spare = ("spare", "--model", str(config.model.path), *SPARE_MODULES) if config.run.spare_learner else ()
    return _spec(run_dir, "learner", arguments, threads=config.learner.threads, ends=True, spare=spare)


def _buffer_words(config: RunConfig, run_dir: RunDir, ports: Ports) -> list[str]:
    words = ["buffer", "--dir", str(run_dir.buffer), "--port", str(ports.buffer), "--metrics", str(run_dir.metrics)]
    words += ["--archive-dir", str(run_dir.archive)] if config.buffer.archive.enabled else ["--no-archive"]
    given = {"max_bytes": config.buffer.max_bytes}
    given |= {f"archive_{name}": getattr(config.buffer.archive, name) for name in _ARCHIVE_WORDS}
    for name, value in given.items():
        words += [] if value is None else [f"--{name.replace('_', '-')}", str(value)]
    return words


def _server_words(config: RunConfig, run_dir: RunDir, ports: Ports, port: int) -> list[str]:
    inference, limits = config.inference, config.inference.limits
    words = ["serve", "--model", str(config.model.path), "--port", str(port), "--weights-dir", str(run_dir.weights)]
    words += ["--buffer", ports.buffer_url, "--run", config.run.name, "--threads", str(inference.threads), "--on-swap", inference.on_swap]
    for name in ("max_running", "max_queued", "kv_tokens", "prefix_tokens", "prefill_tokens", "context_tokens"):
        words += [f"--{name.replace('_', '-')}", str(getattr(limits, name))]
    return words


def _worker_words(run_dir: RunDir, ports: Ports, env: str, name: str) -> list[str]:
    return [
        "worker",
        str(run_dir.path),
        "--env",
        env,
        "--name",
        name,
        "--buffer",
        ports.buffer_url,
        *(w for url in ports.server_urls for w in ("--server", url)),
    ]


def _spec(
    run_dir: RunDir,
    name: str,
    words: Sequence[str] | Callable[[int], Awaitable[Sequence[str]]],
    *,
    threads: int = 1,
    log: str | None = None,
    **more: Any,
) -> ChildSpec:
    async def always(_: int) -> Sequence[str]:
        assert not callable(words)
        return words

    arguments = words if callable(words) else always
    environment = _environment(threads)
    return ChildSpec(
        name=name, program=PROGRAM, arguments=arguments, log=run_dir.logs / f"{log or name}.log", environment=environment, ready_seconds=_READY_SECONDS, **more
    )


def _environment(threads: int) -> dict[str, str]:
    """Every library's own pool of threads is held to the same number: pools that fight over the cores lose most of their time."""
    pools = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
    return {**dict.fromkeys(pools, str(threads)), "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}


def _url(port: int) -> str:
    return f"http://127.0.0.1:{port}"


def describe(config: RunConfig) -> str:
    """The plan in words, for `--dry-run`."""
    run, freshness, batch, actor = config.run, config.freshness, config.batch, config.actor
    size = f"{batch.budget_tokens} tokens" if batch.budget_tokens is not None else f"{batch.groups_per_update} groups"
    lines = [
        f"run        {run.name}: {run.updates} updates in {config.run_dir.path}, seed {run.seed}",
        f"model      {config.model.path}",
        "processes  1 buffer",
        f"           1 learner, {config.learner.threads} thread(s){', 1 spare' if run.spare_learner else ''}",
        f"           {config.inference.servers} inference server(s), {config.inference.engine}, {config.inference.threads} thread(s) each",
        *(f"           {env.replicas} worker(s) for {name} ({env.kind}), {env.concurrency} episodes at once each" for name, env in config.envs.items()),
        f"batch      {size} an update, {batch.order} first; groups of {actor.group_size}, at most {actor.max_tokens} tokens a reply",
        f"credits    {_describe_credits(config)} under way at once (max_lag {freshness.max_lag})",
        *(f"           {name}: {f'{env.fraction:.0%}' if env.fraction is not None else 'an equal part of what is left'}" for name, env in config.envs.items()),
        f"algorithm  {config.algorithm.adv_estimator}, {config.algorithm.loss.name}, lr {config.learner.lr:g}",
        *_describe_selection(config),
        f"kept       a checkpoint every {config.weights.checkpoint_every_updates} updates, the newest {config.weights.checkpoints_kept}, and the first",
        f"eval       {_describe_eval(config)}",
    ]
    return "\n".join(lines)


def _describe_credits(config: RunConfig) -> str:
    return f"{config.credit_groups} groups" if config.credit_groups is not None else f"{config.credit_tokens} tokens"


def _describe_selection(config: RunConfig) -> list[str]:
    """What is filtered and what the policy is held to, where there is such a thing."""
    filters = [f"{name}{''.join(f' {option}={value:g}' for option, value in options.items())}" for name, options in config.algorithm.filter_options.items()]
    loss = config.algorithm.loss
    return [
        *([f"           filters: {', '.join(filters)}"] if filters else []),
        *([f"           KL ({loss.kl_estimator}) to {config.learner.reference}, coefficient {loss.kl_coef:g}"] if config.learner.reference else []),
        *([f"           a bonus for entropy, coefficient {loss.entropy_coef:g}"] if loss.entropy_coef else []),
    ]


def _describe_eval(config: RunConfig) -> str:
    section = config.eval
    interval = f", every {section.every_updates} updates" if section.every_updates else ""
    return f"{section.problems} held-out problems of each environment, greedy and {section.samples} samples each: before{interval} and after"
