"""Who runs the agents of a worker: a gateway in its process, in front of the run's servers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from penstock.buffer.client import BufferClient
from penstock.chat import ChatTemplate
from penstock.clock import SystemClock
from penstock.gateway.engine import HttpEngine
from penstock.gateway.local import AgentHost, AgentSettings, agent_host
from penstock.gateway.serving import Published
from penstock.rollout.config import ActorConfig, WorkerConfig


@asynccontextmanager
async def worker_agents(config: WorkerConfig, template: ChatTemplate) -> AsyncIterator[AgentHost]:
    """The host of a worker's agents. Raises `ConfigError` for an agent that cannot be loaded."""
    assert config.env.agent is not None
    async with (
        BufferClient(config.buffer_url, config.run, token=config.token) as client,
        HttpEngine(config.servers, token=config.token, version=Published(client, SystemClock()).version) as engine,
        agent_host(config.env.agent, template, engine, agent_settings(config.actor, concurrency=config.env.concurrency)) as host,
    ):
        yield host


def agent_settings(actor: ActorConfig, *, concurrency: int) -> AgentSettings:
    """What a run says about actors, for agents: its temperature is that of all replies, its limits are those of a session."""
    return AgentSettings(
        concurrency=concurrency,
        temperature=actor.temperature,
        max_tokens=actor.max_tokens,
        max_turns=actor.max_episode_steps,
        max_session_tokens=actor.max_episode_tokens,
        episode_seconds=actor.episode_seconds,
        reply_seconds=actor.reply_seconds,
    )
