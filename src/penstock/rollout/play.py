"""The one loop in which an agent and an environment take turns. `run_episode` plays it for workers, `RLRolloutWorker` for whoever wants the steps."""

from __future__ import annotations

import contextlib
import logging
import math
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from penstock.envs import Env, Observation, Reply
from penstock.errors import EnvError, InfraError, InvalidError
from penstock.process.points import reach
from penstock.rollout.dialogue import Dialogue
from penstock.rollout.judging import Judgement, sum_of
from penstock.rollout.policy import Action, Situation, as_action
from penstock.rollout.seeds import derived_seed
from penstock.rollout.setting import Setting, Ticket
from penstock.rollout.waiting import Waits
from penstock.types import Json, Message, Problem, Rollout, RolloutStatus, StepFacts, Trace

log = logging.getLogger(__name__)

T = TypeVar("T")

LIMITS = ("max_episode_tokens", "max_episode_steps", "episode_seconds")
"""Ends that are truncations. The others: `terminate`, `env`, `regex`, and `critical_error` for an episode that failed."""
_LONGEST_FAILURE = 500


class Failed(Exception):
    """The episode cannot go on. `kind` counts in metrics: what failed, in one word."""

    def __init__(self, kind: str, sentence: str, status: RolloutStatus = RolloutStatus.INFRA_ERROR) -> None:
        super().__init__(sentence)
        self.kind = kind
        self.status = status


class Play:
    """The state of one episode. `play` it, then ask for its rewards and its rollout. What it does in a turn may be overridden."""

    def __init__(self, ticket: Ticket, problem: Problem, env: Env, setting: Setting) -> None:
        self.ticket, self.problem, self._env, self._setting = ticket, problem, env, setting
        self._policy, self._limits, self._clock = setting.policy, setting.limits, setting.clock
        self._dialogue = Dialogue(setting.prompts)
        self._started = self._clock.monotonic()
        self._tools: tuple[Json, ...] = ()
        self._marks: list[int] = []
        """Number of the message of each step."""
        self.history_lengths: list[int] = []
        """How many messages there are before each step."""
        self._pattern = re.compile(self._limits.termination_regex) if self._limits.termination_regex else None
        self._uid = ticket.uid
        self._waits = Waits(self._uid, setting.running, setting.clock)
        self.num_steps = 0
        self.end = ""
        """Why it is over: `terminate`, `env`, `regex`, the name of a limit, or `critical_error`. Empty while it goes on."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation so far."""
        return self._dialogue.messages

    async def play(self) -> RolloutStatus:
        """Take turns to the end. `TRUNCATED` if a limit ended it, or cut off the last reply."""
        try:
            observation = await self._opened()
            while True:
                action, observation = await self._turn(observation)
                if self.end:
                    return RolloutStatus.TRUNCATED if self.end in LIMITS or action.truncated else RolloutStatus.OK
        except Failed:
            self.end = "critical_error"
            raise

    def prepare(self) -> Situation:
        """What the policy is shown."""
        limits, dialogue = self._limits, self._dialogue
        return Situation(
            messages=dialogue.messages,
            ids=dialogue.ids(),
            max_tokens=min(limits.max_tokens, limits.max_episode_tokens - dialogue.num_tokens),
            seed=derived_seed(self.ticket.seed, "step", self.num_steps),
            deadline_seconds=limits.reply_seconds,
            episode=self._uid,
        )

    async def execute(self, action: Action) -> Observation:
        """What the environment makes of an action."""
        reply = Reply(text=action.message.content, tool_calls=action.message.tool_calls, truncated=action.truncated)
        return usable("env.step", await self._from_env("step", lambda: self._env.step(reply)))

    def check_termination(self, action: Action, observation: Observation) -> str:
        """Why the episode ends after this turn; empty if it goes on."""
        if action.type == "terminate":
            return "terminate"
        if observation.done:
            return "env"
        if self._pattern is not None and self._pattern.search(action.raw_output):
            return "regex"
        return self._limit_reached()

    async def rewards(self, rollout: Rollout) -> Judgement:
        """The rewards of an episode that has ended, checked: by the reward function of the setting, else by the environment."""
        judge = self._setting.judge
        if judge is None:
            rewards = await self._from_env("score", lambda: self._env.score(rollout))
            try:
                return sum_of(rewards)
            except InfraError as error:
                raise Failed("reward", f"env.score: {error}") from error
        try:
            # A judge has a deadline of its own; a queue in front of it is no failure of the episode.
            with self._waits("reward", "the reward function", math.inf, self.num_steps):
                judgement = await judge.judge(self._dialogue.messages, self.problem, rollout)
            self._judge_steps(judgement)
        except (InfraError, InvalidError) as error:
            raise Failed("reward", str(error)) from error
        return judgement

    def rollout(self, status: RolloutStatus, *, failed: Failed | None = None, judgement: Judgement | None = None) -> Rollout:
        """What there is of the episode."""
        ticket = self.ticket
        metadata: dict[str, Json] = {"end": self.end, "steps": self.num_steps, "seconds": dict(self._waits.seconds)}
        return Rollout(
            run=ticket.run,
            environment=ticket.environment,
            problem_id=self.problem.id,
            group_id=ticket.group_id,
            member=ticket.member,
            retry=ticket.retry,
            rollout_uid=ticket.uid,
            trace=self._dialogue.trace(),
            status=status,
            reward=None if judgement is None else judgement.total,
            rewards={} if judgement is None else judgement.parts,
            failure=None if failed is None else shown(str(failed)),
            metadata=metadata | ({} if failed is None else {"error": failed.kind}),
        )

    async def close(self) -> None:
        """Let the environment give back what it holds. That it cannot changes nothing about the episode."""
        close = getattr(self._env, "close", None)
        try:
            if close is not None:
                with self._waits("env", "env.close", self._limits.step_seconds, self.num_steps):
                    await close()
        except (Exception, SystemExit) as error:
            log.warning("%s: env.close failed: %s: %s", self._uid, type(error).__name__, error)
        finally:
            self._waits.close()

    async def _opened(self) -> Observation:
        observation = usable("env.open", await self._from_env("open", lambda: self._env.open(self.problem, self.ticket.env_seed)))
        if observation.done:
            raise Failed("env_error", "the environment was done before the first step", RolloutStatus.ENV_ERROR)
        self._tools = tuple(observation.tools)
        self._dialogue = Dialogue(self._setting.prompts, self._tools)
        self._see(observation)
        if self._limit_reached():
            sentence = f"the prompt has {self._dialogue.num_tokens} tokens, max_episode_tokens is {self._limits.max_episode_tokens}"
            raise Failed("env_error", sentence, RolloutStatus.ENV_ERROR)
        return observation

    async def _turn(self, before: Observation) -> tuple[Action, Observation]:
        """One step: the agent acts, the environment answers, and it is written down what came of it."""
        action = await self._act()
        self.history_lengths.append(len(self.messages))
        try:
            mark = self._dialogue.say(action, self._now())
        except InvalidError as error:
            raise Failed("server", f"the reply does not fit together: {error}") from error
        self._marks.append(mark)
        try:
            after = await self.execute(action)
            self.num_steps += 1
            if after.messages and not after.done:
                self._see(after)
            self.end = self.check_termination(action, after)
            if not self.end and not after.messages:
                raise Failed("env_raised", "the environment neither said anything nor ended the episode")
        except Failed as failed:
            info = {"critical_error": shown(str(failed)), "termination_reason": "critical_error"}
            with contextlib.suppress(InvalidError):  # what it acted on may be the very thing that cannot be stored
                self._dialogue.judge(mark, reward=None, step=_facts(before, action, info, is_done=True))
            raise
        info = {**after.info, "termination_reason": self.end} if self.end else dict(after.info)
        try:
            self._dialogue.judge(mark, reward=after.reward, step=_facts(before, action, info, is_done=bool(self.end)))
        except InvalidError as error:
            raise Failed("reward", f"env.step gave no usable reward: {error}") from error
        return action, after

    async def _act(self) -> Action:
        limits = self._limits
        try:
            with self._waits("reply", "a reply", limits.reply_seconds, self.num_steps):
                action = as_action(await self._policy.get_action(self.prepare(), self._tools or None))
        except TimeoutError as error:
            sentence = f"no reply within {limits.reply_seconds:g} s" if self._waits.expired else f"the policy timed out: {error}"
            raise Failed("server", sentence) from error
        except Exception as error:  # whatever a server or a policy does, it costs one episode
            raise Failed("server", f"no reply: {type(error).__name__}: {error}") from error
        reach("worker.mid_episode")
        return action

    def _limit_reached(self) -> str:
        """Name of the limit that forbids a further step; empty if none does. The first step is always begun: else there were nothing to train on."""
        limits = self._limits
        if self._dialogue.num_tokens >= limits.max_episode_tokens:
            return "max_episode_tokens"
        if self.num_steps >= limits.max_episode_steps:
            return "max_episode_steps"
        if self.num_steps > 0 and self._clock.monotonic() - self._started >= limits.episode_seconds:
            return "episode_seconds"
        return ""

    def _see(self, observation: Observation) -> None:
        try:
            self._dialogue.see(observation.messages, self._now())
        except InvalidError as error:
            raise Failed("env_raised", f"what the environment said cannot be shown: {error}") from error

    def _judge_steps(self, judgement: Judgement) -> None:
        """Write down the rewards of single steps."""
        for index, reward in judgement.steps.items():
            if not 0 <= index < len(self._marks):
                raise InfraError(f"the reward function judged step {index}, and the episode has {len(self._marks)}")
            self._dialogue.judge(self._marks[index], reward=reward)

    async def _from_env(self, verb: str, call: Callable[[], Awaitable[T]]) -> T:
        """What the environment gives, or why it gives nothing. `sys.exit` in an environment ends its episode, not the worker."""
        try:
            with self._waits("env", f"env.{verb}", self._limits.step_seconds, self.num_steps):
                return await call()
        except EnvError as error:
            raise Failed("env_error", f"env.{verb}: {error}", RolloutStatus.ENV_ERROR) from error
        except (Exception, SystemExit) as error:
            if isinstance(error, TimeoutError) and self._waits.expired:
                raise Failed("env_timeout", f"env.{verb} did not return within {self._limits.step_seconds:g} s") from error
            raise Failed("env_raised", f"env.{verb} raised {type(error).__name__}: {error}") from error

    def _now(self) -> int:
        return int(self._clock.now() * 1000)


def usable(giver: str, observation: Observation) -> Observation:
    """What an environment gave, if it has the form of an observation. Raises `Failed`."""
    if not isinstance(observation, Observation):
        raise Failed("env_raised", f"{giver} gave {type(observation).__name__} in place of an Observation")
    messages, info = observation.messages, observation.info
    if not isinstance(messages, (tuple, list)) or not all(isinstance(message, Message) for message in messages):
        raise Failed("env_raised", f"{giver} gave an Observation whose messages are no tuple of Message: {messages!r:.80}")
    if not isinstance(info, (dict, Mapping)):
        raise Failed("env_raised", f"{giver} gave an Observation whose info is no mapping: {info!r:.80}")
    return observation


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
        failure=shown(sentence),
        metadata={"error": kind},
    )


def shown(sentence: str) -> str:
    """A sentence that can be stored: whatever it quotes, it is text, and not long."""
    return sentence.encode("utf-8", "replace").decode()[:_LONGEST_FAILURE]


def _facts(before: Observation, action: Action, info: Mapping[str, Json], *, is_done: bool) -> StepFacts:
    return StepFacts(observation=before.observation, action=action.structured, info=info, value_estimate=action.value_estimate, done=is_done)
