"""Warm processes that call a reward function, and are thrown away when it misbehaves."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import struct
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from penstock.errors import ConfigError, InfraError
from penstock.process.child import Child
from penstock.process.confined import Confinement, confinement, own_mounts, set_niceness, start_confined
from penstock.process.identity import is_computing
from penstock.rollout.config import EnvConfig
from penstock.rollout.judging import Judgement, read_judgement
from penstock.rollout.openai_shapes import message_shape
from penstock.rollout.rewards.config import RewardConfig
from penstock.types import Json, Message, Problem, Rollout

log = logging.getLogger(__name__)

_PROGRAM = Path(__file__).with_name("_child.py")
_LONGEST_ANSWER_BYTES = 2 << 20
_FILE_BYTES = 64 << 20
_NICE = 8
"""A process that computes all the time leaves five sixths of a core to one that wants it, too."""
_LOOK_SECONDS = 0.5
"""So often it is looked whether a call only waits for something; then it makes place for another."""
_WAITING_SHARE = 4
"""So many times as many waiting calls as there are places."""


@contextlib.asynccontextmanager
async def judge_of(env: EnvConfig) -> AsyncIterator[RewardPool | None]:
    """The reward function of an environment, for the time of a block; None if the environment gives its rewards itself. Raises `ConfigError`."""
    config = RewardConfig.of(env)
    if config is None:
        yield None
        return
    async with RewardPool(config) as pool:
        yield pool


class RewardPool:
    """A `Judge` over a user's function. Use it as an async context manager, from one event loop."""

    def __init__(self, config: RewardConfig) -> None:
        self._config = config
        self._places = asyncio.Semaphore(config.processes)
        self._num_waiting = 0
        self._idle: list[_Caller] = []
        self._all: set[_Caller] = set()
        self.can_write = True
        """Whether the function could write files; known once a process was started."""

    @property
    def confinement(self) -> Confinement:
        """What keeps the function in on this system."""
        return confinement()[0]

    async def __aenter__(self) -> Self:
        """Start one process, so that a function that cannot be loaded is told at once. Raises `ConfigError`."""
        self._idle.append(await self._started())
        holes = ", which lets it write files" if self.can_write else ""
        log.info("rewards by %s, kept in by %s%s", self._config.function, self.confinement, holes)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for caller in tuple(self._all):
            await self._ended(caller)

    async def judge(self, messages: Sequence[Message], problem: Problem, rollout: Rollout) -> Judgement:
        """See `Judge`. Raises `InfraError` for whatever is no reward."""
        question = {
            "messages": [message_shape(message) for message in messages],
            "ground_truth": problem.ground_truth,
            "facts": {
                "problem_id": problem.id,
                "environment": rollout.environment,
                "task": dict(problem.task),
                "status": rollout.status.value,
                "num_steps": rollout.metadata.get("steps"),
            },
        }
        async with self._place() as place:
            answer = await self._asked(question, place)
        if "failed" in answer:
            raise InfraError(f"the reward function failed: {answer['failed']}")
        return read_judgement(answer.get("value"))

    @contextlib.asynccontextmanager
    async def _place(self) -> AsyncIterator[_Place]:
        """A place among those that call at the same time; given to another once this call is found waiting, for a hang costs nobody anything.

        What computes keeps its place, however long: so no more than these compute.
        """
        await self._places.acquire()
        place = _Place()
        loop = asyncio.get_running_loop()

        def look() -> None:
            is_waiting = place.caller is not None and not place.caller.is_computing
            if is_waiting and self._num_waiting < _WAITING_SHARE * self._config.processes:
                place.is_lent = True
                self._num_waiting += 1
                self._places.release()
            else:
                place.timer = loop.call_later(_LOOK_SECONDS, look)

        place.timer = loop.call_later(_LOOK_SECONDS, look)
        try:
            yield place
        finally:
            place.timer.cancel()
            if place.is_lent:
                self._num_waiting -= 1
            else:
                self._places.release()

    async def _asked(self, question: Json, place: _Place) -> Json:
        caller = place.caller = self._idle.pop() if self._idle else await self._restarted()
        is_sound = False
        try:
            answer = await caller.ask(question, self._config.seconds)
            is_sound = answer.get("is_sound") is True and len(self._idle) < self._config.processes
            return answer
        finally:
            if is_sound:
                self._idle.append(caller)
            else:
                await asyncio.shield(self._ended(caller))

    async def _restarted(self) -> _Caller:
        try:
            return await self._started()
        except ConfigError as error:  # it could be loaded before
            raise InfraError(str(error)) from error

    async def _started(self) -> _Caller:
        config = self._config
        hello = {
            "function": config.function,
            "path": [str(Path.cwd()), *(entry for entry in sys.path if entry)],
            "memory_bytes": config.memory_mb << 20,
            "file_bytes": _FILE_BYTES,
            "checks_parent": not self.confinement.hides_processes,
            "mounts": own_mounts(),
        }
        # Isolated: neither the working directory nor variables decide what is imported first.
        caller = _Caller(*await start_confined([sys.executable, "-I", os.fspath(_PROGRAM)]))
        self._all.add(caller)
        try:
            answer = await caller.ask(hello, config.load_seconds)
            if "ready" not in answer:
                raise ConfigError(f"the reward function {config.function} cannot be loaded: {answer.get('failed')}")
            self.can_write = answer.get("writes") is not False
        except InfraError as error:
            await self._ended(caller)
            raise ConfigError(f"the reward function {config.function} cannot be loaded: {error}") from error
        except BaseException:
            await asyncio.shield(self._ended(caller))
            raise
        return caller

    async def _ended(self, caller: _Caller) -> None:
        self._all.discard(caller)
        await caller.end()


class _Place:
    """One call, and what is known of it."""

    def __init__(self) -> None:
        self.caller: _Caller | None = None
        self.timer: asyncio.TimerHandle
        self.is_lent = False


class _Caller:
    """One process that calls the function."""

    def __init__(self, child: Child, questions: asyncio.StreamWriter, answers: asyncio.StreamReader) -> None:
        self._child, self._questions, self._answers = child, questions, answers
        set_niceness(child, _NICE)

    async def ask(self, question: Json, seconds: float) -> dict[str, Json]:
        """One question, one answer. Raises `InfraError` if there is none."""
        body = json.dumps(question).encode("utf-8", "replace")
        try:
            async with asyncio.timeout(seconds):
                self._questions.write(struct.pack(">I", len(body)) + body)
                await self._questions.drain()
                (length,) = struct.unpack(">I", await self._answers.readexactly(4))
                if length > _LONGEST_ANSWER_BYTES:
                    raise InfraError(f"the reward function's process answered {length} bytes")
                answer = json.loads(await self._answers.readexactly(length))
        except TimeoutError:
            raise InfraError(f"the reward function did not return within {seconds:g} s") from None
        except (asyncio.IncompleteReadError, OSError) as error:
            raise InfraError("the reward function's process ended") from error
        except ValueError as error:
            raise InfraError(f"the reward function's process answered nonsense: {error}") from error
        if not isinstance(answer, dict):
            raise InfraError("the reward function's process answered nonsense")
        return answer

    @property
    def is_computing(self) -> bool:
        """Whether it, or something that it has started, wants the processor now."""
        return is_computing(self._child.id.pid)

    async def end(self) -> None:
        """End it and all that it has started."""
        self._child.kill()
        self._questions.close()
        await self._child.wait()
