"""Agents that a worker starts: a gateway inside its process, one session for each slot, and the user's own function in front of it.

    async def run(problem, base_url):          # or a plain function, which then runs in a thread
        client = openai.AsyncOpenAI(base_url=base_url, api_key="none")
        ...
        return 1.0                             # or {"right": 1.0, "short": 0.2}; None if it has given its reward by POST .../reward

Sessions are not journalled: they end with the worker, and their slots are tried again.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import importlib.util
import inspect
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import uvicorn

from penstock.chat import ChatTemplate
from penstock.clock import Clock, SystemClock
from penstock.errors import ConfigError, EnvError, InputError, InvalidError
from penstock.gateway.app import TOTAL, Gateway
from penstock.gateway.events import Ended, Manner, Rewarded, Slot, Stored
from penstock.gateway.journal import Forgetful
from penstock.gateway.sampling import Engine
from penstock.gateway.session import Session, Surroundings
from penstock.gateway.sessions import Sessions
from penstock.gateway.settings import AgentSettings
from penstock.gateway.streams import TokenTexts
from penstock.httpd import Access, bind, server_config
from penstock.process.threads import Threads
from penstock.types import Problem, Rollout, RolloutStatus
from penstock.wire import check_id

Agent = Callable[[Problem, str], Any]
"""Called with a problem and a base_url; gives the reward, or an awaitable of it."""
_LONGEST_FAILURE = 500


class Ticket(Protocol):
    """Which slot an episode is to fill, as a worker has it."""

    @property
    def run(self) -> str: ...
    @property
    def environment(self) -> str: ...
    @property
    def group_id(self) -> str: ...
    @property
    def member(self) -> int: ...
    @property
    def retry(self) -> int: ...
    @property
    def seed(self) -> int: ...


class AgentHost:
    """Plays episodes by running an agent. Made by `agent_host`."""

    def __init__(self, agent: Agent, sessions: Sessions, settings: AgentSettings, url: str, threads: Threads, written: dict[str, Rollout]) -> None:
        self._agent, self._sessions, self._settings, self._url = agent, sessions, settings, url
        self._threads, self._written = threads, written

    async def play(self, ticket: Ticket, problem: Problem) -> Rollout:
        """Run the agent on a problem and give the rollout of it, whatever happens. Cancelling it is the only way to get nothing.

        What it raises, a wait beyond `episode_seconds` and a reward that is no finite number are infrastructure failures; `EnvError` says that the
        episode is invalid by itself. An agent that ran into a limit of the session and still gives a reward was truncated.
        """
        slot = Slot(
            run=ticket.run,
            environment=ticket.environment,
            problem_id=problem.id,
            group_id=ticket.group_id,
            member=ticket.member,
            retry=ticket.retry,
            purpose=self._settings.purpose,
        )
        session = await self._sessions.begin(slot, seed=ticket.seed, manner=Manner(temperature=self._settings.temperature))
        try:
            ended = await self._ended(session, problem)
        except asyncio.CancelledError:
            # Nobody wants the rollout, and a session that stayed open would take the place of another.
            await self._sessions.end(session.opened.session, _failed("cancelled", "the episode was cancelled"))
            self._written.pop(slot.uid, None)
            raise
        try:
            await self._sessions.end(session.opened.session, ended)
        except InvalidError as error:
            await self._sessions.end(session.opened.session, _failed("reward", str(error)))
        return self._written.pop(slot.uid)

    async def _ended(self, session: Session, problem: Problem) -> Ended:
        """Run the agent to its end, and say how it ended."""
        seconds = self._settings.episode_seconds
        try:
            async with asyncio.timeout(seconds) as timer:
                reward = await self._called(problem, f"{self._url}/sessions/{session.opened.session}/v1")
            if reward is not None and session.ended is None:
                await session.tell(rewarded=Rewarded(rewards=_rewards(reward)))
        except EnvError as error:
            return _failed("env_error", str(error), RolloutStatus.ENV_ERROR)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return _failed("agent_raised", "a task of the agent was cancelled, and it let that pass")  # nobody has cancelled the episode
        except (Exception, SystemExit) as error:
            if isinstance(error, TimeoutError) and timer.expired():
                return _failed("agent_timeout", f"the agent did not return within {seconds:g} s")
            if session.limit_hit:
                return _failed(session.limit_hit, f"the agent raised {type(error).__name__} at a limit: {error}", RolloutStatus.ENV_ERROR)
            kind = "reward" if isinstance(error, (_NoReward, InvalidError)) else "agent_raised"
            return _failed(kind, str(error) if kind == "reward" else f"the agent raised {type(error).__name__}: {error}")
        metadata = {"end": session.limit_hit or "agent"}
        return Ended(status=RolloutStatus.TRUNCATED if session.limit_hit else RolloutStatus.OK, metadata=metadata)

    async def _called(self, problem: Problem, base_url: str) -> Any:
        if inspect.iscoroutinefunction(self._agent):
            return await self._agent(problem, base_url)
        given = await asyncio.get_running_loop().run_in_executor(self._threads, functools.partial(self._agent, problem, base_url))
        return await given if inspect.isawaitable(given) else given


@contextlib.asynccontextmanager
async def agent_host(
    agent: str | Agent, template: ChatTemplate, engine: Engine, settings: AgentSettings, *, policy: str = "policy", clock: Clock | None = None
) -> AsyncIterator[AgentHost]:
    """A host with its gateway on a free port of loopback, until the block ends. Raises `ConfigError` for an agent that cannot be loaded."""
    function = load_agent(agent) if isinstance(agent, str) else agent
    counts: Counter[str] = Counter()
    written: dict[str, Rollout] = {}

    async def keep(rollout: Rollout) -> Stored:
        written[rollout.rollout_uid] = rollout
        return Stored(fate="handed_over")

    around = Surroundings(
        template=template,
        engine=engine,
        journal=Forgetful(),
        limits=settings.limits,
        max_tokens=settings.max_tokens,
        clock=clock or SystemClock(),
        count=lambda name, count: counts.update({name: count}),
    )
    sessions = Sessions(around, keep, policy=policy)
    gateway = Gateway(sessions, TokenTexts(template.decode, frozenset(template.eos_ids)), counts, models=("policy",))
    listener = bind("127.0.0.1", 0)
    config = server_config(gateway.app(), Access(), gateway.direct)
    config.timeout_graceful_shutdown = 1
    server = _Server(config)
    serving = asyncio.create_task(server.serve([listener]))
    threads = Threads(settings.concurrency, "agent")
    try:
        yield AgentHost(function, sessions, settings, f"http://127.0.0.1:{listener.getsockname()[1]}", threads, written)
    finally:
        # Threads of agents that still run cannot be ended; their sessions answer no more.
        threads.shutdown(cancel_futures=True)
        server.should_exit = True
        await serving


class _Server(uvicorn.Server):
    """Leaves signals to the process that it is a part of."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def load_agent(name: str) -> Agent:
    """The function that `module:function` or `file.py:function` names. Raises `ConfigError`."""
    where, _, attribute = name.rpartition(":")
    try:
        if where.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(where).stem, where)
            if spec is None or spec.loader is None:
                raise ImportError(f"{where} is not a Python file")
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(where)
        function = getattr(module, attribute)
    except Exception as error:  # whatever a user's module does when it is imported
        raise ConfigError(f"agent: {name!r} cannot be loaded: {type(error).__name__}: {error}") from error
    if not callable(function):
        raise ConfigError(f"agent: {name!r} is {function!r:.80}, which cannot be called")
    loaded: Agent = function
    return loaded


class _NoReward(Exception):
    """What the agent gave is not a reward."""


def _rewards(value: Any) -> dict[str, float]:
    named = value if isinstance(value, Mapping) else {TOTAL: value}
    if not named:
        raise _NoReward("the agent must give one named number or more, got none")
    for name, number in named.items():
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not math.isfinite(number):
            raise _NoReward(f"the agent must give finite numbers, got {number!r:.80} for {name!r:.80}")
        try:
            check_id(name, "reward name")
        except (InputError, TypeError) as error:
            raise _NoReward(str(error)) from None
    return {name: float(number) for name, number in named.items()}


def _failed(error: str, sentence: str, status: RolloutStatus = RolloutStatus.INFRA_ERROR) -> Ended:
    return Ended(status=status, failure=sentence.encode("utf-8", "replace").decode()[:_LONGEST_FAILURE], error=error)
