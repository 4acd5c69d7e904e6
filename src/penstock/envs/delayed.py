"""An environment that takes its time: what a benchmark puts in place of a slow tool or a browser."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.clock import Clock, SystemClock
from penstock.envs.protocol import Env, Observation, Reply, Rewards
from penstock.types import Problem, Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class Delayed:
    """`env` with a wait before each step. Others run meanwhile."""

    env: Env
    latency_seconds: float
    clock: Clock = field(default_factory=SystemClock)

    async def open(self, problem: Problem, seed: int) -> Observation:
        """See `Env`. Without a wait."""
        return await self.env.open(problem, seed)

    async def step(self, reply: Reply) -> Observation:
        """See `Env`."""
        await self.clock.sleep(self.latency_seconds)
        return await self.env.step(reply)

    async def score(self, rollout: Rollout) -> Rewards:
        """See `Env`. Without a wait."""
        return await self.env.score(rollout)

    async def close(self) -> None:
        """See `Env`."""
        close = getattr(self.env, "close", None)
        if close is not None:
            await close()
