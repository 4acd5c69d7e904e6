"""What an agent is to do in one episode, as one value: how the conversation begins, what it may call, what it acts in, what is right."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Self

from penstock.envs import Env, Environment, Tool, ToolEnv
from penstock.envs.making import made
from penstock.errors import ConfigError, InputError
from penstock.types import Json, Message, Problem
from penstock.wire import check_id


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskDefinition:
    """A task for `RLRolloutWorker`.

    The agent acts in `environment`, or, if there is none, with `tools` alone.
    """

    id: str = "task"
    initial_messages: tuple[Message, ...] = ()
    """How the conversation begins. An environment says what it does with it."""
    tools: tuple[Tool, ...] = ()
    """What the agent may call, if it acts with tools alone."""
    environment: Callable[[], Env] | None = None
    """Makes what the agent acts in, anew for each episode."""
    environment_details: Mapping[str, Json] = field(default_factory=dict)
    """What the environment needs to know; `Problem.task` to it."""
    ground_truth: Json = None
    """What a reward function compares with; never shown to the agent."""
    termination_regex: str | None = None
    """The episode is over once the agent writes something in which this is found."""
    text_reply: str | None = None
    """With tools alone: what a user says to a reply without a call. None: such a reply is the final answer, and the episode is over."""
    problem_text: str | None = None
    """Of a problem that is a text and not messages."""

    def __post_init__(self) -> None:
        try:
            check_id(self.id, "id")
            re.compile(self.termination_regex or "")
        except (InputError, re.error) as error:
            raise ConfigError(f"task {self.id!r:.80}: {error}") from None
        if self.environment is not None and (self.tools or self.text_reply is not None):
            raise ConfigError(f"task {self.id}: an environment has tools and answers of its own; give it, or tools and text_reply")
        if self.environment is None and not self.initial_messages:
            raise ConfigError(f"task {self.id}: initial_messages is empty, and no environment begins the conversation")

    @classmethod
    def of(cls, environment: Environment, problem: Problem, *, termination_regex: str | None = None) -> Self:
        """A problem of an environment as a task."""
        return cls(
            id=problem.id,
            initial_messages=() if isinstance(problem.prompt, str) else problem.prompt,
            problem_text=problem.prompt if isinstance(problem.prompt, str) else None,
            environment=environment.make,
            environment_details=problem.task,
            ground_truth=problem.ground_truth,
            termination_regex=termination_regex,
        )

    @property
    def problem(self) -> Problem:
        """As environments know it."""
        return Problem(
            id=self.id,
            environment="task",
            prompt=self.initial_messages if self.problem_text is None else self.problem_text,
            task=self.environment_details,
            ground_truth=self.ground_truth,
        )

    def env(self) -> Env:
        """What the agent acts in, for one episode. An environment that cannot be made fails when it is opened."""
        return ToolEnv(self.tools, text_reply=self.text_reply) if self.environment is None else made(self.environment)
