"""`RLRolloutWorker`: runs an agent through episodes of one task and gives what training needs, step by step.

    task = TaskDefinition.of(environment, problem)
    worker = RLRolloutWorker(task, policy, max_episode_steps=12, template=template)
    steps, messages, ground_truth = await worker.run_episode()
    worker.rollout.metadata["end"]     # why it ended

The loop is that of `run_episode`; what a turn consists of may be overridden in a subclass, by the three methods whose names begin with an underscore.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from penstock.chat import ChatTemplate
from penstock.clock import Clock, SystemClock
from penstock.envs import Observation
from penstock.errors import ConfigError, EnvError
from penstock.rollout.config import ActorConfig
from penstock.rollout.dialogue import Prompts
from penstock.rollout.episode import finished
from penstock.rollout.judging import Judge
from penstock.rollout.play import Failed, Play, usable
from penstock.rollout.policy import Action, AgentPolicy
from penstock.rollout.seeds import derived_seed
from penstock.rollout.setting import Setting, Ticket
from penstock.rollout.task import TaskDefinition
from penstock.trace import steps
from penstock.types import Json, Message, Rollout, RolloutStatus, StepData


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Execution:
    """What came of an action. Unpacks into information about the execution, the text of the agent's message, and the messages that answer it."""

    action: Action
    observation: Observation
    """Its messages, reward, end and further information are what is recorded."""

    def __iter__(self) -> Iterator[Json]:
        yield dict(self.observation.info)
        yield self.action.message.content
        yield list(self.observation.messages)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Occasion:
    """Whose episodes these are; only names and seeds depend on it."""

    run: str = "local"
    environment: str = "task"
    group_id: str = ""
    """Empty: one of its own, by the task's id."""
    seed: int = 0
    """Of all episodes; each has one of its own that follows from it. All begin alike."""


class RLRolloutWorker:
    """Episodes of one task with one policy, one at a time. Each call of `run_episode` is the next member of a group."""

    def __init__(
        self,
        task_definition: TaskDefinition,
        agent_policy: AgentPolicy,
        max_episode_steps: int = 16,
        *,
        template: ChatTemplate | None = None,
        limits: ActorConfig | None = None,
        judge: Judge | None = None,
        occasion: Occasion | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`template`: how the policy's model reads messages; None if only its server knows. `limits`: further ones, of tokens and time (its
        `max_episode_steps` and `termination_regex` give way to the worker's and the task's). `judge`: a reward function in place of the environment's score.
        """
        if not isinstance(max_episode_steps, int):
            raise ConfigError(f"max_episode_steps: must be an integer, got {max_episode_steps!r}")
        self.task_definition = task_definition
        self.agent_policy = agent_policy
        self.max_episode_steps = max_episode_steps
        chosen = replace(limits or ActorConfig(), max_episode_steps=max_episode_steps)
        if task_definition.termination_regex is not None:
            chosen = replace(chosen, termination_regex=task_definition.termination_regex)
        prompts = None if template is None else Prompts(template)
        self._setting = Setting(policy=agent_policy, prompts=prompts, limits=chosen, judge=judge, clock=clock or SystemClock())
        self._occasion = occasion or Occasion()
        self._num_episodes = 0
        self._play: _HookedPlay | None = None
        self._rollout: Rollout | None = None

    @property
    def rollout(self) -> Rollout:
        """The last episode as it is stored: trace, status, why it ended or failed, and its rewards. An episode with tools alone and without a judge has no
        reward yet, and must get one before it is written anywhere."""
        assert self._rollout is not None, "no episode has been run"
        return self._rollout

    async def run_episode(self) -> tuple[list[StepData], list[Message], Json]:
        """Play one episode: its steps, the messages for a reward function, and the ground truth.

        Whatever fails ends the episode and not the worker: `rollout.status` and `rollout.failure` say so, and the steps are those before.
        """
        task = self.task_definition
        play = self._play = _HookedPlay(self, self._ticket(), task.problem, task.env(), self._setting)
        self._num_episodes += 1
        self._rollout = await finished(play, is_scored=self._setting.judge is not None or task.environment is not None)
        return _whole_steps(self._rollout, play), list(play.messages), task.ground_truth

    def _prepare_policy_observation(self, current_messages_history: Sequence[Message]) -> Json:
        """What the policy is given as its observation: a `Situation`, which has the messages and their tokens. Override it for a policy of another kind."""
        return Play.prepare(self._playing)

    async def _execute_action_in_environment(self, policy_action: Action) -> Execution:
        """Do what the policy decided, and say what came of it. An override may also return the three values that an `Execution` unpacks into; the agent's
        message is that of the action either way. Information under `critical_error` ends the episode as a failure, and so does whatever is raised."""
        return Execution(action=policy_action, observation=await Play.execute(self._playing, policy_action))

    def _check_termination(self, current_messages_history: Sequence[Message], action_execution: Execution) -> str:
        """Why the episode is over after this step; empty if it is not. An override may also return whether it is over, which is then for the reason
        `check_termination`. Whatever it says, the limits hold."""
        return Play.check_termination(self._playing, action_execution.action, action_execution.observation)

    @property
    def _playing(self) -> Play:
        assert self._play is not None, "no episode is being played"
        return self._play

    def _ticket(self) -> Ticket:
        occasion, member = self._occasion, self._num_episodes
        return Ticket(
            run=occasion.run,
            environment=occasion.environment,
            group_id=occasion.group_id or f"{self.task_definition.id}/0/0",
            member=member,
            retry=0,
            seed=derived_seed(occasion.seed, "episode", member),
            env_seed=derived_seed(occasion.seed, "env"),
        )


class _HookedPlay(Play):
    """The shared loop with a worker's three methods in it."""

    def __init__(self, worker: RLRolloutWorker, *arguments: Json) -> None:
        super().__init__(*arguments)
        self._worker = worker
        self._execution: Execution | None = None
        self.actions: list[Action] = []

    def prepare(self) -> Json:
        return self._worker._prepare_policy_observation(list(self.messages))

    async def execute(self, action: Action) -> Observation:
        self.actions.append(action)
        try:
            execution = self._execution = _as_execution(await self._worker._execute_action_in_environment(action), action)
        except Failed:
            raise
        except EnvError as error:
            raise Failed("env_error", str(error), RolloutStatus.ENV_ERROR) from error
        except Exception as error:  # of a method that was overridden
            raise Failed("env_raised", f"the action raised {type(error).__name__}: {error}") from error
        observation = usable("_execute_action_in_environment", execution.observation)
        if observation.info.get("critical_error"):
            raise Failed("env_raised", f"the action had a critical error: {observation.info['critical_error']}")
        return observation

    def check_termination(self, action: Action, observation: Observation) -> str:
        assert self._execution is not None, "an action is executed before anybody asks what came of it"
        try:
            reason: Json = self._worker._check_termination(list(self.messages), self._execution)
        except Exception as error:  # of a method that was overridden
            raise Failed("env_raised", f"_check_termination raised {type(error).__name__}: {error}") from error
        if not isinstance(reason, str):
            reason = "check_termination" if reason else ""
        return reason or self._limit_reached()


def _as_execution(value: Json, action: Action) -> Execution:
    """What an overridden method returned. Raises `TypeError` if it is not what came of an action."""
    if isinstance(value, Execution):
        return value
    try:
        info, _, messages = value
        observation = Observation(messages=tuple(messages), info=dict(info))
    except (TypeError, ValueError):
        raise TypeError(f"_execute_action_in_environment must return an Execution, or information, text and messages; got {value!r:.80}") from None
    return Execution(action=action, observation=observation)


def _whole_steps(rollout: Rollout, play: _HookedPlay) -> list[StepData]:
    """The steps, with what only the play knows: the messages as they were said (where a template shows the past in another form, the trace forks and alone
    does not tell them all), and what the policy wrote and said about it, before anything was read into it."""
    found, messages = steps(rollout), list(play.messages)
    ends = [*play.history_lengths[1:], len(messages)]
    return [
        replace(step, resulting_messages_history=messages[:end], raw_policy_output=action.raw_output, policy_logprobs=step.policy_logprobs or action.logprobs)
        for step, end, action in zip(found, ends, play.actions, strict=False)
    ]
