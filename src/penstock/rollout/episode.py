"""One episode: an agent and an environment take turns until one of them, or a limit, ends it. What fails becomes a status, never a reward."""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from penstock.clock import Clock, SystemClock
from penstock.envs import Env, Observation, Reply, Rewards
from penstock.errors import EnvError, InputError, InvalidError
from penstock.process.points import reach
from penstock.rollout.config import ActorConfig
from penstock.rollout.dialogue import Dialogue, Prompts
from penstock.rollout.policy import Action, AgentPolicy, Situation
from penstock.rollout.seeds import derived_seed
from penstock.types import Json, Problem, Rollout, RolloutStatus, StepFacts, Trace
from penstock.wire import check_id

T = TypeVar("T")

_LONGEST_FAILURE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """Which slot an episode is to fill."""

    run: str
    environment: str
    group_id: str
    member: int
    retry: int
    seed: int
    """Of this try: what is sampled."""
    env_seed: int
    """Of the group: how the environment begins."""

    @property
    def uid(self) -> str:
        """Of the rollout. A slot that is handed out again has another retry, so no two tries share it."""
        return f"{self.group_id}:{self.member}:{self.retry}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Setting:
    """What all episodes of a worker have in common."""

    policy: AgentPolicy
    prompts: Prompts
    limits: ActorConfig = field(default_factory=ActorConfig)
    clock: Clock = field(default_factory=SystemClock)


class Failed(Exception):
    """The episode cannot go on. `kind` counts in metrics: what failed, in one word."""

    def __init__(self, kind: str, sentence: str, status: RolloutStatus = RolloutStatus.INFRA_ERROR) -> None:
        super().__init__(sentence)
        self.kind = kind
        self.status = status


async def run_episode(ticket: Ticket, problem: Problem, env: Env, setting: Setting) -> Rollout:
    """Play one episode and give the rollout of it, whatever happens.

    `metadata` says how it ended (`end`: `env`, `terminate` or the limit's name), what failed (`error`), how many `steps` it had, and how many `seconds` it
    waited for whom. Time is bounded by `episode_seconds` plus one reply and one step. Cancelling it is the only way to get nothing.
    """
    episode = _Episode(ticket, problem, env, setting)
    try:
        status = await episode.play()
        rollout = episode.rollout(status)
        rewards = await episode.scored(rollout)
    except Failed as failed:
        return episode.rollout(failed.status, failure=str(failed), error=failed.kind)
    return replace(rollout, reward=math.fsum(rewards.values()), rewards=rewards, metadata=episode.metadata())


def failed_rollout(ticket: Ticket, problem_id: str, kind: str, sentence: str) -> Rollout:
    """The rollout of an episode of which nothing can be kept but that it failed."""
    return Rollout(
        run=ticket.run,
        environment=ticket.environment,
        problem_id=problem_id,
        group_id=ticket.group_id,
        member=ticket.member,
        retry=ticket.retry,
        rollout_uid=ticket.uid,
        trace=Trace(segments=()),
        status=RolloutStatus.INFRA_ERROR,
        failure=_shown(sentence),
        metadata={"error": kind},
    )


class _Episode:
    """The state of one episode."""

    def __init__(self, ticket: Ticket, problem: Problem, env: Env, setting: Setting) -> None:
        self._ticket, self._problem, self._env = ticket, problem, env
        self._policy, self._limits, self._clock = setting.policy, setting.limits, setting.clock
        self._dialogue = Dialogue(setting.prompts)
        self._started = self._clock.monotonic()
        self._steps = 0
        self._end = ""
        self._waited: defaultdict[str, float] = defaultdict(float)

    async def play(self) -> RolloutStatus:
        """Take turns to the end. `TRUNCATED` if a limit ended it, or cut off the last reply."""
        observation = await self._from_env("open", lambda: self._env.open(self._problem, self._ticket.env_seed))
        if observation.done:
            raise Failed("env_error", "the environment was done before the first step", RolloutStatus.ENV_ERROR)
        while True:
            self._see(observation)
            self._end = self._limit_reached()
            if self._end:
                return RolloutStatus.TRUNCATED
            action = await self._act()
            observation = await self._step(observation, action)
            self._end = "env" if observation.done else "terminate" if action.type == "terminate" else ""
            if self._end:
                return RolloutStatus.TRUNCATED if action.truncated else RolloutStatus.OK

    async def scored(self, rollout: Rollout) -> Rewards:
        """The rewards, checked."""
        rewards = await self._from_env("score", lambda: self._env.score(rollout))
        if not isinstance(rewards, Mapping) or not rewards:
            raise Failed("reward", f"env.score must give one named number or more, got {rewards!r:.80}")
        for name, value in rewards.items():
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                raise Failed("reward", f"env.score must give finite numbers, got {value!r:.80} for {name!r:.80}")
            try:
                check_id(name, "reward name")
            except InputError as error:
                raise Failed("reward", str(error)) from None
        return {name: float(value) for name, value in rewards.items()}

    def rollout(self, status: RolloutStatus, *, failure: str | None = None, error: str | None = None) -> Rollout:
        """What there is of the episode; without rewards."""
        ticket = self._ticket
        return Rollout(
            run=ticket.run,
            environment=ticket.environment,
            problem_id=self._problem.id,
            group_id=ticket.group_id,
            member=ticket.member,
            retry=ticket.retry,
            rollout_uid=ticket.uid,
            trace=self._dialogue.trace(),
            status=status,
            failure=None if failure is None else _shown(failure),
            metadata=self.metadata() | ({} if error is None else {"error": error}),
        )

    def metadata(self) -> dict[str, Json]:
        """See `run_episode`."""
        return {"end": self._end, "steps": self._steps, "seconds": dict(self._waited)}

    def _limit_reached(self) -> str:
        """Name of the limit that forbids a further step; empty if none does."""
        limits = self._limits
        if self._dialogue.num_tokens >= limits.max_episode_tokens:
            if self._steps == 0:
                sentence = f"the prompt has {self._dialogue.num_tokens} tokens, max_episode_tokens is {limits.max_episode_tokens}"
                raise Failed("env_error", sentence, RolloutStatus.ENV_ERROR)
            return "max_episode_tokens"
        if self._steps >= limits.max_episode_steps:
            return "max_episode_steps"
        # The first step is always begun: without one there would be nothing to train on.
        if self._steps > 0 and self._clock.monotonic() - self._started >= limits.episode_seconds:
            return "episode_seconds"
        return ""

    def _see(self, observation: Observation) -> None:
        try:
            self._dialogue.see(observation.messages, self._now())
        except InvalidError as error:
            raise Failed("env_raised", f"what the environment said cannot be shown: {error}") from error

    async def _act(self) -> Action:
        limits, dialogue = self._limits, self._dialogue
        situation = Situation(
            messages=dialogue.messages,
            ids=dialogue.ids(),
            max_tokens=min(limits.max_tokens, limits.max_episode_tokens - dialogue.num_tokens),
            seed=derived_seed(self._ticket.seed, "step", self._steps),
            deadline_seconds=limits.reply_seconds,
        )
        started = self._clock.monotonic()
        try:
            async with asyncio.timeout(limits.reply_seconds) as timer:
                action = await self._policy.get_action(situation)
        except TimeoutError as error:
            sentence = f"no reply within {limits.reply_seconds:g} s" if timer.expired() else f"the policy timed out: {error}"
            raise Failed("server", sentence) from error
        except Exception as error:  # whatever a server or a policy does, it costs one episode
            raise Failed("server", f"no reply: {type(error).__name__}: {error}") from error
        finally:
            self._waited["reply"] += self._clock.monotonic() - started
        reach("worker.mid_episode")
        return action

    async def _step(self, before: Observation, action: Action) -> Observation:
        try:
            mark = self._dialogue.say(action, self._now())
        except InvalidError as error:
            raise Failed("server", f"the reply does not fit together: {error}") from error
        reply = Reply(text=action.message.content, tool_calls=action.message.tool_calls, truncated=action.truncated)
        after = await self._from_env("step", lambda: self._env.step(reply))
        self._steps += 1
        facts = StepFacts(
            observation=before.observation,
            action=action.structured,
            info=after.info,
            value_estimate=action.value_estimate,
            done=after.done,
        )
        try:
            self._dialogue.judge(mark, reward=after.reward, step=facts)
        except InvalidError as error:
            raise Failed("reward", f"env.step gave no usable reward: {error}") from error
        return after

    async def _from_env(self, verb: str, call: Callable[[], Awaitable[T]]) -> T:
        """What the environment gives, or why it gives nothing. `sys.exit` in an environment ends its episode, not the worker."""
        started = self._clock.monotonic()
        try:
            async with asyncio.timeout(self._limits.step_seconds) as timer:
                return await call()
        except EnvError as error:
            raise Failed("env_error", f"env.{verb}: {error}", RolloutStatus.ENV_ERROR) from error
        except (Exception, SystemExit) as error:
            if isinstance(error, TimeoutError) and timer.expired():
                raise Failed("env_timeout", f"env.{verb} did not return within {self._limits.step_seconds:g} s") from error
            raise Failed("env_raised", f"env.{verb} raised {type(error).__name__}: {error}") from error
        finally:
            self._waited["env"] += self._clock.monotonic() - started

    def _now(self) -> int:
        return int(self._clock.now() * 1000)


def _shown(sentence: str) -> str:
    """A sentence that can be stored: whatever it quotes, it is text, and not long."""
    return sentence.encode("utf-8", "replace").decode()[:_LONGEST_FAILURE]
