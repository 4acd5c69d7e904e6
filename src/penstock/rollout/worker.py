"""The worker: a process that keeps many episodes in flight, of one environment or of several.

    dispatch: problems -> open groups ─┐
    claim:    free slots -> tickets <──┘ -> episodes -> finished rollouts -> write: batches -> buffer
    beat:     every 2 s, or the session ends and its slots go to others

One session is one life: when the buffer has ended it, its episodes are dropped and a new one begins.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from penstock.buffer.client import BufferClient
from penstock.chat import ChatTemplate
from penstock.errors import FencedError, ProcessError
from penstock.inference.client import InferenceClient
from penstock.metrics import JsonlSink, Metrics
from penstock.process.threads import use_threads
from penstock.rollout.agents import AgentHosts, hosts_of
from penstock.rollout.blocking import ended_if_blocked
from penstock.rollout.bounds import Bounds
from penstock.rollout.config import WorkerConfig
from penstock.rollout.dialogue import Prompts
from penstock.rollout.engine_policy import EnginePolicy
from penstock.rollout.episode import Setting
from penstock.rollout.life import Desk, Life, Stop
from penstock.rollout.reporting import Reporter
from penstock.rollout.rewards import judge_of
from penstock.rollout.running import SlowReporter
from penstock.rollout.servers import Servers
from penstock.rollout.supply import Supply
from penstock.rollout.waking import one_awake
from penstock.rollout.writing import AcksLog, Writer

log = logging.getLogger(__name__)


async def run_worker(*configs: WorkerConfig, agents: AgentHosts | None = None) -> None:
    """Work until SIGTERM or SIGINT, then leave in good order within 10 s. Raises `ConfigError` for wrong settings, `StoreError` if the buffer is gone, and
    `ProcessError` if no server answers at the start, or, after the same good order, if the process has come to hold more than it may.

    Several configs are several environments of one run, side by side in this process: each has its own session and number of episodes, and they share the
    servers fairly.
    """
    first = configs[0]
    hosts = [hosts_of(config, agents) for config in configs]
    supplies = [Supply.of(config.environment, config.env) for config in configs]
    prompts = Prompts(ChatTemplate.load(first.model, template=first.actor.template))
    use_threads()
    async with AsyncExitStack() as stack:
        stop = stack.enter_context(_told_to_stop())
        client = await stack.enter_async_context(BufferClient(first.buffer_url, first.run, token=first.token))
        servers = Servers([await stack.enter_async_context(InferenceClient(url, token=first.token)) for url in first.servers])
        desks = []
        for config, supply, made in zip(configs, supplies, hosts, strict=True):
            metrics = None
            if config.metrics is not None:
                metrics = Metrics(JsonlSink(config.metrics))
                stack.callback(metrics.close)
            reporter = Reporter(metrics, config.environment)
            writer = Writer(client, stack.enter_context(AcksLog(config.acks)))
            weight, waited = config.env.fraction or 1.0, partial(reporter.waited, "place")
            sampler = servers.sampler(config.environment, weight=weight, waited=waited)
            policy = EnginePolicy(sampler=sampler, template=prompts.template, temperature=config.actor.temperature)
            judge = await stack.enter_async_context(judge_of(config.env))
            setting = Setting(policy=policy, prompts=prompts, limits=config.actor, judge=judge)
            placing = servers.placing(config.environment, weight=weight, waited=waited)
            host = None if made is None else await stack.enter_async_context(made(config, prompts.template, placing))
            slow = SlowReporter(setting.running, config.name, config.view, slow_seconds=config.actor.slow_seconds, clock=setting.clock)
            stack.callback(slow.close)
            desks.append(Desk(config, client, writer, supply, setting, reporter, slow, host))
        stack.enter_context(ended_if_blocked(first.actor.block_seconds, [desk.setting.running for desk in desks]))
        bounds = Bounds("worker", {config.environment: config.env.memory_mb for config in configs})
        stack.enter_context(bounds.hold())
        if await _done_before(one_awake(first.servers, desks[0].clock), stop):
            await run_desks(desks, bounds, stop)


async def run_desks(desks: Sequence[Desk], bounds: Bounds, stop: Stop) -> None:
    """Work at all desks until told to stop. What ends one ends all of them. Raises `ProcessError` if they had to leave because a bound was broken."""
    try:
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(_leave_if_broken(bounds, desks, stop))
            await asyncio.wait([tasks.create_task(run_desk(desk, stop)) for desk in desks])
            watching.cancel()
    except BaseExceptionGroup as errors:
        raise _first(errors) from errors
    if stop.trouble:
        raise ProcessError(stop.trouble.sentence)


async def _leave_if_broken(bounds: Bounds, desks: Sequence[Desk], stop: Stop) -> None:
    def tell(held_mb: int) -> None:
        for desk in desks:
            desk.reporter.memory_mb = held_mb

    stop.trouble = await bounds.broken(desks[0].clock, tell)
    stop.set()


async def run_desk(desk: Desk, stop: Stop) -> None:
    """Live one session after another until told to stop. Errors come out one at a time, not as groups."""
    try:
        while not stop.is_set():
            life = Life(desk)
            if not await _done_before(life.begin(), stop):
                return
            try:
                await life.live(stop)
            except BaseExceptionGroup as errors:
                fenced, others = errors.split(FencedError)
                if others is not None:
                    raise _first(others) from errors
                log.warning("session %s is over, its episodes are dropped: %s", life.session, fenced and _first(fenced))
    finally:
        desk.reporter.emit(0)


async def _done_before(work: Coroutine[Any, Any, None], stop: Stop) -> bool:
    """Do something; False if told to stop before it was done."""
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not working.done():
        working.cancel()
        return False
    await working
    return True


@contextlib.contextmanager
def _told_to_stop() -> Iterator[Stop]:
    """An event that SIGTERM and SIGINT set."""
    loop, stop = asyncio.get_running_loop(), Stop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        yield stop
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error of a group, however deep."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
