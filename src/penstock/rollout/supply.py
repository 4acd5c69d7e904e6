"""What a worker's environment is made of: its episodes, and the problem that each group is about."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from penstock.clock import Clock, SystemClock
from penstock.envs import Delayed, Env, Environment, environment
from penstock.envs.making import made
from penstock.errors import ConfigError, InvalidError
from penstock.problems import ProblemSource, Split, parse_group_id
from penstock.rollout.config import EnvConfig
from penstock.types import Problem

_KNOWN_PROBLEMS = 1024


@dataclass(frozen=True, slots=True, eq=False)
class Supply:
    """An environment under the name that it has in a run."""

    name: str
    environment: Environment
    latency_seconds: float = 0.0
    clock: Clock = field(default_factory=SystemClock)
    _known: dict[str, Problem] = field(default_factory=dict)
    """Problems of the last groups: the members of a group ask for the same one."""

    @classmethod
    def of(cls, name: str, config: EnvConfig, clock: Clock | None = None) -> Supply:
        """As configured. Raises `ConfigError` with the key that is wrong."""
        try:
            found = environment(config.kind, config.params)
        except ConfigError as error:
            raise ConfigError(f"envs.{name}: {error}") from None
        return cls(name, found, config.latency_seconds, clock or SystemClock())

    def source(self, split: Split) -> ProblemSource:
        """Problems of a split."""
        return self.environment.problems(split)

    def source_name(self, split: Split) -> str:
        """Name of a split's problems in group ids: no other environment of the run has it."""
        return f"{self.name}:{self.source(split).name}"

    def env(self) -> Env:
        """For one episode. One that cannot be made fails when it is opened."""
        env = made(self.environment.make)
        return Delayed(env=env, latency_seconds=self.latency_seconds, clock=self.clock) if self.latency_seconds > 0 else env

    def problem(self, group_id: str, problem_id: str | None = None) -> Problem:
        """The problem of a group. Raises `InvalidError` if it is not one of this environment, or not the one that the group was opened for."""
        problem = self._known.get(group_id)
        if problem is None:
            if len(self._known) >= _KNOWN_PROBLEMS:
                self._known.clear()
            problem = self._known[group_id] = self._found(group_id)
        if problem_id is not None and problem.id != problem_id:
            raise InvalidError(f"group {group_id} was opened for problem {problem_id}, but with these settings it is {problem.id}")
        return problem

    def _found(self, group_id: str) -> Problem:
        source_name, position = parse_group_id(group_id)
        for split in Split:
            if source_name == self.source_name(split):
                return replace(self.source(split).problem(position.pass_, position.index), environment=self.name)
        raise InvalidError(f"group {group_id} is about {source_name}, which environment {self.name} does not have")
