"""What an episode is given: the slot that it is to fill, and what all episodes of a worker have in common."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.clock import Clock, SystemClock
from penstock.rollout.config import ActorConfig
from penstock.rollout.dialogue import Prompts
from penstock.rollout.judging import Judge
from penstock.rollout.policy import AgentPolicy
from penstock.rollout.running import Running


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
    prompts: Prompts | None
    """How messages become tokens; None if only the policy's server knows."""
    limits: ActorConfig = field(default_factory=ActorConfig)
    judge: Judge | None = None
    """Gives the rewards in place of the environment."""
    running: Running = field(default_factory=Running)
    """Where episodes say what they wait for."""
    clock: Clock = field(default_factory=SystemClock)
