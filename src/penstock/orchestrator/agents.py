"""Who runs the agents of a worker: a gateway in its process, in front of the run's servers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from penstock.buffer.client import BufferClient
from penstock.chat import ChatTemplate
from penstock.clock import SystemClock
from penstock.gateway.settings import AgentSettings
from penstock.inference.client import Placing, Sampler
from penstock.rollout.agents import AgentHost
from penstock.rollout.config import ActorConfig, EnvConfig, WorkerConfig
from penstock.types import Purpose


@asynccontextmanager
async def worker_agents(config: WorkerConfig, template: ChatTemplate, placing: Placing) -> AsyncIterator[AgentHost]:
    """The host of a worker's agents, whose requests are placed with the worker's own. Raises `ConfigError` for an agent that cannot be loaded."""
    assert config.env.agent is not None
    # Imported only then: a web server comes with it.
    from penstock.gateway.engine import HttpEngine
    from penstock.gateway.local import agent_host
    from penstock.gateway.serving import Published

    async with (
        BufferClient(config.buffer_url, config.run, token=config.token) as client,
        HttpEngine(config.servers, token=config.token, version=Published(client, SystemClock()).version, placing=placing) as engine,
        agent_host(config.env.agent, template, engine, agent_settings(config.actor, concurrency=config.env.concurrency)) as host,
    ):
        yield host


@asynccontextmanager
async def eval_agents(env: EnvConfig, template: ChatTemplate, sampler: Sampler, actor: ActorConfig) -> AsyncIterator[AgentHost]:
    """The host of an evaluation's agents, which sample from `sampler`."""
    assert env.agent is not None
    # Imported only then: a web server comes with it.
    from penstock.gateway.local import agent_host
    from penstock.gateway.sampler_engine import SamplerEngine

    settings = replace(agent_settings(actor, concurrency=env.concurrency), purpose=Purpose.EVAL)
    async with agent_host(env.agent, template, SamplerEngine(sampler), settings) as host:
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
