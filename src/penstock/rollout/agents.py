"""Agents of the user's own, as a worker sees them: somebody who plays an episode. Who that is comes from outside, for it needs a gateway."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from penstock.chat import ChatTemplate
from penstock.errors import ConfigError
from penstock.inference.client import Placing, Sampler
from penstock.rollout.config import ActorConfig, EnvConfig, WorkerConfig
from penstock.rollout.episode import Ticket, failed_rollout
from penstock.types import Problem, Rollout

log = logging.getLogger(__name__)


class AgentHost(Protocol):
    """Runs agents."""

    async def play(self, ticket: Ticket, problem: Problem) -> Rollout:
        """Run the agent on a problem and give the rollout of it, whatever happens. Cancelling it is the only way to get nothing."""


AgentHosts = Callable[[WorkerConfig, ChatTemplate, Placing], AbstractAsyncContextManager[AgentHost]]
"""Makes the host of a worker whose environment names an agent. Its requests go to the worker's servers, in order of the config, as the worker places them."""


EvalAgents = Callable[[EnvConfig, ChatTemplate, Sampler, ActorConfig], AbstractAsyncContextManager[AgentHost]]
"""The same for an evaluation, which samples in its own process and says so in the actor's settings."""


async def play_with(host: AgentHost, ticket: Ticket, problem: Problem) -> Rollout:
    """Have an agent play, and give the rollout of it, even if its host breaks its promise to: that costs this episode, and not all those beside it."""
    try:
        return await host.play(ticket, problem)
    except Exception as error:
        log.exception("%s failed in a way of its own", ticket.uid)
        return failed_rollout(ticket, problem.id, "unforeseen", f"{type(error).__name__}: {error}")


def hosts_of(config: WorkerConfig, hosts: AgentHosts | None) -> AgentHosts | None:
    """`hosts`, if the environment names an agent. Raises `ConfigError` if it does and nobody can run it."""
    if config.env.agent is None:
        return None
    if hosts is None:
        raise ConfigError(f"envs.{config.environment}.agent: agents are run by `penstock worker`, not by this process")
    return hosts
