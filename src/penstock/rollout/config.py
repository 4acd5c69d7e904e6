"""Settings of actors, environments, evaluation and of one worker process."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from penstock.config import check_range
from penstock.errors import ConfigError
from penstock.types import Json


def is_function_name(text: str) -> bool:
    """Whether it may name a function of a user.

    >>> [is_function_name(text) for text in ("rewards:exact", "my/rewards.py", "my/rewards.py:exact", "exact", "rewards:")]
    [True, True, True, False, False]
    """
    where, _, name = text.rpartition(":")
    return bool(where and name.isidentifier()) or text.endswith(".py")


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorConfig:
    """How episodes are played (`actor`)."""

    group_size: int = 8
    """Members of a group: tries at one problem that are compared with each other."""
    max_tokens: int = 128
    """Tokens of one reply."""
    temperature: float = 1.0
    max_episode_steps: int = 16
    """Replies in one episode; more is a truncation."""
    max_episode_tokens: int = 4096
    """Tokens of the whole conversation; more is a truncation."""
    episode_seconds: float = 600.0
    """No further step is begun after this; a truncation."""
    reply_seconds: float = 120.0
    """A reply that takes longer is an infrastructure failure. Long enough for a server to be started again."""
    step_seconds: float = 60.0
    """An environment that takes longer to open, step or score is an infrastructure failure."""
    block_seconds: float = 30.0
    """A worker in which an environment blocks everything else for so long says which, and ends; it is started again, and its episodes are retried."""
    slow_seconds: float = 120.0
    """An episode that goes on for longer is named in the worker's log, with what it waits for."""
    termination_regex: str | None = None
    """An episode is over once the agent writes something in which this regular expression is found."""
    template: str | None = None
    """A built-in chat template to use in place of the model's own."""

    def __post_init__(self) -> None:
        for name in ("group_size", "max_tokens", "max_episode_steps"):
            check_range(name, getattr(self, name), least=1)
        check_range("max_episode_tokens", self.max_episode_tokens, least=2)
        check_range("temperature", self.temperature, least=0)
        for name in ("episode_seconds", "reply_seconds", "step_seconds", "block_seconds", "slow_seconds"):
            check_range(name, getattr(self, name), above=0)
        try:
            re.compile(self.termination_regex or "")
        except re.error as error:
            raise ConfigError(f"termination_regex: {self.termination_regex!r} is not a regular expression: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvConfig:
    """One environment of a run (`envs.<name>`)."""

    kind: str
    """Built-in name, name of an entry point `penstock.envs`, or `module:Class`."""
    replicas: int = 1
    """Worker processes."""
    concurrency: int = 64
    """Episodes in flight in each of them."""
    memory_mb: int = 4096
    """Memory of each of these processes, with what its environments have started. One that comes to hold more ends its episodes as infrastructure failures,
    and is started again; an environment that asks for much more at once gets a `MemoryError`. In an evaluation it is what may come on top of the model."""
    fraction: float | None = None
    """Share of credits and of the batch; environments without one divide the rest."""
    latency_seconds: float = 0.0
    """Waited before each step, for benchmarks."""
    params: Mapping[str, Json] = field(default_factory=dict)
    """Settings of the environment itself."""
    agent: str | None = None
    """An agent of your own that plays the problems of this kind: `module:function` or `file.py:function`, an `async def run(problem, base_url) -> reward` that
    talks to the model through OpenAI's API."""
    reward: str | None = None
    """A function that gives the rewards in place of the environment, run in processes of its own: `module:function`, `file.py:function`, or `file.py` with a
    function `reward(messages, ground_truth)`."""
    reward_seconds: float = 10.0
    """A call of it that takes longer is an infrastructure failure."""
    reward_memory_mb: int = 1024
    """Address space of a process that calls it."""
    reward_processes: int = 2
    """Processes that call it at the same time, in each worker."""

    def __post_init__(self) -> None:
        check_range("replicas", self.replicas, least=1)
        check_range("concurrency", self.concurrency, least=1)
        check_range("memory_mb", self.memory_mb, least=128)
        check_range("fraction", self.fraction, above=0, most=1)
        check_range("latency_seconds", self.latency_seconds, least=0)
        check_range("reward_seconds", self.reward_seconds, above=0)
        check_range("reward_memory_mb", self.reward_memory_mb, least=64)
        check_range("reward_processes", self.reward_processes, least=1)
        if self.agent is not None and not all(self.agent.rpartition(":")):
            raise ConfigError(f"agent: must be module:function or file.py:function, got {self.agent!r}")
        if self.agent is not None and self.reward is not None:
            raise ConfigError("reward: an agent gives its reward itself; leave one of the two out")
        if self.reward is not None and not is_function_name(self.reward):
            raise ConfigError(f"reward: must be module:function, file.py:function or file.py, got {self.reward!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalConfig:
    """How a run is evaluated on held-out problems (`eval`)."""

    every_updates: int = 0
    """Evaluate each time so many updates are done; 0: only before and after."""
    problems: int = 512
    """Held-out problems; all of them if there are fewer."""
    samples: int = 4
    """Sampled replies to each problem, beside the greedy one."""
    temperature: float = 1.0
    """Of the sampled replies."""
    concurrency: int = 256
    """Episodes in flight."""
    max_retries: int = 3
    """New tries after infrastructure failures."""
    solved_reward: float = 1.0
    """A reply with this reward or more has solved its problem."""

    def __post_init__(self) -> None:
        check_range("every_updates", self.every_updates, least=0)
        for name in ("problems", "samples", "concurrency"):
            check_range(name, getattr(self, name), least=1)
        check_range("temperature", self.temperature, above=0)
        check_range("max_retries", self.max_retries, least=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """One worker process: episodes of one environment."""

    buffer_url: str
    run: str
    servers: tuple[str, ...]
    """Inference servers, without `/v1`."""
    model: Path
    """Directory with the tokenizer and chat template of the model that they serve."""
    environment: str
    """Name of the environment in the run."""
    env: EnvConfig
    actor: ActorConfig = field(default_factory=ActorConfig)
    name: str = "worker"
    """Names the worker in the buffer; its sessions are named after it."""
    acks: Path | None = None
    """File to which `uid digest` is appended for each rollout that the buffer has acknowledged."""
    metrics: Path | None = None
    view: Path | None = None
    """File that names the slowest episodes of the moment, for `penstock status`."""
    seed: int = 0
    """Of the run: which seeds groups get."""
    token: str | None = None

    def __post_init__(self) -> None:
        check_range("servers", len(self.servers), least=1)
