"""Pinned evaluation: held-out problems under exactly one version of the weights, in an engine of its own.

Called by `penstock eval` and by the children that evaluate a run. Nothing here touches the run's servers, workers or credits.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from penstock.buffer.api import OpenGroup
from penstock.buffer.client import BufferClient
from penstock.chat import ChatTemplate
from penstock.clock import SystemClock
from penstock.errors import ConfigError, ProcessError
from penstock.inference.client import Sampler
from penstock.metrics import Mean, Record, named
from penstock.problems import Position, Split, group_id
from penstock.process.memory import held_bytes
from penstock.process.threads import use_threads
from penstock.rollout.agents import AgentHost, EvalAgents, play_with
from penstock.rollout.bounds import Bounds, Own
from penstock.rollout.config import ActorConfig, EnvConfig, EvalConfig
from penstock.rollout.dialogue import Prompts
from penstock.rollout.engine_policy import EnginePolicy
from penstock.rollout.episode import Setting, Ticket, run_episode
from penstock.rollout.judging import Judge
from penstock.rollout.rewards import judge_of
from penstock.rollout.scores import scored
from penstock.rollout.seeds import derived_seed
from penstock.rollout.supply import Supply
from penstock.rollout.writing import AcksLog, Writer
from penstock.types import Problem, Purpose, Rollout, RolloutStatus

Manner = Literal["greedy", "sampled"]

_GROUPS_AT_ONCE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationConfig:
    """What is evaluated, and on what."""

    model: Path
    """Hugging Face directory: architecture, tokenizer, and the weights if no digest is given."""
    environment: str
    """Name of the environment in the run."""
    env: EnvConfig
    weights_dir: Path | None = None
    """Where `<digest>.safetensors` lies: `weights/` of a run."""
    digest: str = ""
    version: int = 0
    """What the weights are called in the run; every sampled token says so."""
    actor: ActorConfig = field(default_factory=ActorConfig)
    """Limits of episodes and the template; its group size and temperature do not matter here."""
    eval: EvalConfig = field(default_factory=EvalConfig)
    seed: int = 0
    threads: int = 1
    """Threads of torch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalResult:
    """How well one version does. Episodes that failed are counted and in none of the means."""

    environment: str
    version: int
    digest: str
    """Of the weights as they were loaded and hashed."""
    num_problems: int
    num_samples: int
    """Sampled replies to each problem: the k of `avg_at_k`."""
    greedy: float | None
    """Mean reward at temperature 0; None if every episode failed."""
    avg_at_k: float | None
    """Mean reward of the sampled replies, each problem weighing the same."""
    pass_at: Mapping[int, float]
    """Share of problems that at least one of k sampled replies solves, by k; over problems with all their samples."""
    errors: Mapping[str, int]
    """Episodes that failed for good, by what failed."""
    num_truncated: int
    tokens_sampled: int
    seconds: float

    def records(self) -> list[Record]:
        """As metrics."""
        env = self.environment
        means = {named("eval/<env>/pass@<k>", env=env, k=str(k)): value for k, value in self.pass_at.items()}
        if self.avg_at_k is not None:
            means[named("eval/<env>/avg@<k>", env=env, k=str(self.num_samples))] = self.avg_at_k
        if self.greedy is not None:
            means[named("eval/<env>/greedy", env=env)] = self.greedy
        return [Mean(name, value) for name, value in means.items()]


async def evaluate(config: EvaluationConfig, *, buffer: BufferClient | None = None, acks: Path | None = None, agents: EvalAgents | None = None) -> EvalResult:
    """Evaluate one version. With `buffer`, the episodes are stored there too, as groups of purpose `eval`, which are never cut.

    Greedy replies and the engine's seeds are fixed, so the same weights give the same result. Raises `ConfigError` or `WeightsError` if the model or
    its weights cannot be had, `ProcessError` if the environment comes to hold more memory than it may. `agents` runs the environment's agent, if it
    names one.
    """
    if config.env.agent is not None and agents is None:
        raise ConfigError(f"envs.{config.environment}.agent: agents are evaluated by `penstock eval`, not by this process")
    # Imported only now: torch comes with it.
    from penstock.inference.local import LocalEngine

    started = time.monotonic()
    supply = Supply.of(config.environment, config.env)
    prompts = Prompts(ChatTemplate.load(config.model, template=config.actor.template))
    engine = LocalEngine.load(
        config.model,
        weights_dir=config.weights_dir,
        digest=config.digest,
        version=config.version,
        threads=config.threads,
        max_running=config.eval.concurrency,
        template=prompts.template,
    )
    use_threads()
    async with AsyncExitStack() as stack:
        judge = await stack.enter_async_context(judge_of(config.env))
        rounds = _Rounds(config, supply, prompts, engine, judge, run="eval" if buffer is None else buffer.run)
        if agents is not None and config.env.agent is not None:
            for manner, temperature in rounds.temperatures.items():
                host = agents(config.env, prompts.template, engine, replace(config.actor, temperature=temperature))
                rounds.hosts[manner] = await stack.enter_async_context(host)
        # Measured with the model in memory: its environments have as much on top of it as they have in a worker.
        held = held_bytes(os.getpid())
        own = Own(most=engine.most_cache_bytes, needed=lambda: held + engine.cache_bytes)
        await _play_within(Bounds("evaluation", {config.environment: config.env.memory_mb}, own), rounds)
    if buffer is not None:
        with AcksLog(acks) as log:
            await _store(rounds, config, buffer, Writer(buffer, log))
    counted = [rollout for rollouts in (*rounds.counted("greedy"), *rounds.counted("sampled")) for rollout in rollouts]
    scores = scored(
        [rollouts[0].reward for rollouts in rounds.counted("greedy")],
        [[rollout.reward for rollout in rollouts] for rollouts in rounds.counted("sampled")],
        solved_reward=config.eval.solved_reward,
    )
    return EvalResult(
        environment=config.environment,
        version=engine.served.version,
        digest=engine.served.digest,
        num_problems=len(rounds.problems),
        num_samples=config.eval.samples,
        greedy=scores.greedy,
        avg_at_k=scores.avg_at_k,
        pass_at=scores.pass_at,
        errors=Counter(str(rollout.metadata.get("error")) for rollout in counted if not rollout.status.usable),
        num_truncated=sum(rollout.status is RolloutStatus.TRUNCATED for rollout in counted),
        tokens_sampled=engine.sampled_tokens,
        seconds=time.monotonic() - started,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """One episode of an evaluation."""

    index: int
    """Of the problem."""
    manner: Manner
    member: int


class _Rounds:
    """All episodes of an evaluation and what came of them."""

    def __init__(self, config: EvaluationConfig, supply: Supply, prompts: Prompts, sampler: Sampler, judge: Judge | None, *, run: str) -> None:
        self._config, self._supply, self._run = config, supply, run
        source = supply.source(Split.HELD_OUT)
        wanted = config.eval.problems
        self.problems: list[Problem] = [source.problem(0, index) for index in range(wanted if source.size is None else min(wanted, source.size))]
        self.tries: dict[_Place, list[Rollout]] = {}
        """Every try at each episode; the last one counts."""
        self.hosts: dict[Manner, AgentHost] = {}
        """Who plays, if an agent of the user's own does."""
        self.temperatures: dict[Manner, float] = {"greedy": 0.0, "sampled": config.eval.temperature}
        self._settings = {
            manner: Setting(
                policy=EnginePolicy(sampler=sampler, template=prompts.template, temperature=value), prompts=prompts, limits=config.actor, judge=judge
            )
            for manner, value in self.temperatures.items()
        }

    async def play(self) -> None:
        """Play them all, so many at a time."""
        places = self._places()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._config.eval.concurrency):
                tasks.create_task(self._play_next(places))

    def group(self, index: int, manner: Manner) -> str:
        """Id of the group of a problem's greedy reply, or of its sampled ones. Another version has other groups."""
        return group_id(f"{self._supply.name}:eval:{manner}:{self._config.version}", Position(index=index))

    def counted(self, manner: Manner) -> list[list[Rollout]]:
        """The last try at each episode, by problem and member."""
        members = range(self._config.eval.samples if manner == "sampled" else 1)
        return [[self.tries[_Place(index=index, manner=manner, member=member)][-1] for member in members] for index in range(len(self.problems))]

    def _places(self) -> Iterator[_Place]:
        for index in range(len(self.problems)):
            yield _Place(index=index, manner="greedy", member=0)
            for member in range(self._config.eval.samples):
                yield _Place(index=index, manner="sampled", member=member)

    async def _play_next(self, places: Iterator[_Place]) -> None:
        for place in places:
            self.tries[place] = [await self._play(place, 0)]
            while self.tries[place][-1].status is RolloutStatus.INFRA_ERROR and len(self.tries[place]) <= self._config.eval.max_retries:
                self.tries[place].append(await self._play(place, len(self.tries[place])))

    async def _play(self, place: _Place, retry: int) -> Rollout:
        # Seeds follow the problem and not the version, so that two versions are compared on the same random numbers.
        problem = self.problems[place.index]
        ticket = Ticket(
            run=self._run,
            environment=eval_environment(self._supply.name),
            group_id=self.group(place.index, place.manner),
            member=place.member,
            retry=retry,
            seed=derived_seed(self._config.seed, problem.id, place.member, retry),
            env_seed=derived_seed(self._config.seed, "env", problem.id),
        )
        host = self.hosts.get(place.manner)
        if host is not None:
            return await play_with(host, ticket, problem)
        return await run_episode(ticket, problem, self._supply.env(), self._settings[place.manner])


async def _play_within(bounds: Bounds, rounds: _Rounds) -> None:
    """Play all episodes, unless a bound is broken before. What was played by then is given up: a mean over a part of the problems is another one."""
    with bounds.hold():
        playing, watching = asyncio.create_task(rounds.play()), asyncio.create_task(bounds.broken(SystemClock()))
        try:
            await asyncio.wait({playing, watching}, return_when=asyncio.FIRST_COMPLETED)
            if not playing.done() or playing.exception() is not None:
                # Who asks for memory when there is none left need not be who took it: the engine fails of it, too.
                trouble = watching.result() if watching.done() else bounds.trouble()
                if trouble is not None:
                    raise ProcessError(trouble.sentence)
            await playing
        finally:
            playing.cancel()
            watching.cancel()
            await asyncio.gather(playing, watching, return_exceptions=True)


def eval_environment(name: str) -> str:
    """Under which name eval groups of an environment are stored: workers of the environment itself are never handed their slots."""
    return f"{name}:eval"


async def _store(rounds: _Rounds, config: EvaluationConfig, buffer: BufferClient, writer: Writer) -> None:
    """Write all tries. What an earlier evaluation of the same version has stored stays as it is."""
    manners: tuple[Manner, ...] = ("greedy", "sampled")
    groups = [
        OpenGroup(
            id=rounds.group(index, manner),
            environment=eval_environment(config.environment),
            problem_id=problem.id,
            size=config.eval.samples if manner == "sampled" else 1,
            purpose=Purpose.EVAL,
        )
        for index, problem in enumerate(rounds.problems)
        for manner in manners
    ]
    for start in range(0, len(groups), _GROUPS_AT_ONCE):
        await buffer.open_groups(groups[start : start + _GROUPS_AT_ONCE])
    # Tries at one slot must come in order: a retry is known to the buffer only after the failure before it.
    for retry in range(config.eval.max_retries + 1):
        await writer.write([tries[retry] for tries in rounds.tries.values() if len(tries) > retry])
