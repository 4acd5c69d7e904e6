"""A generator's own functions, called in a process that lives long, with a deadline. Whatever they do there is an answer here, never an exception.

The process is started at the first call and again after it died or was killed for being late. A function that kills it time and again does not get
a new one for each of a thousand groups: after `MAX_DEATHS` in a row the rest of that call is given up.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from penstock.buffer.compat.generators.discovery import Found
from penstock.buffer.compat.generators.frames import FrameError, Frames
from penstock.buffer.compat.generators.processes import START_SECONDS, ChildSettings, start_generator_process
from penstock.buffer.compat.hooks import HookFault, HookName, HookSettings, ItemGroup
from penstock.process.child import Child
from penstock.process.restarts import describe_exit

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_DEATHS = 3


class _Late(Exception):
    """No answer within the deadline."""


class _Process:
    """One life of the process. Everything that goes wrong with it ends it."""

    def __init__(self, child: Child, frames: Frames) -> None:
        self._child = child
        self._frames = frames
        # Ends what the process leaves behind, so that reading from it ends, too.
        self._waiting = asyncio.create_task(child.wait())

    @classmethod
    async def start(cls, found: Found, settings: ChildSettings, log_file: Path) -> _Process:
        child, frames = await start_generator_process("hooks", found.path, settings, log_file, {})
        process = cls(child, frames)
        try:
            first = await process.within(START_SECONDS, frames.receive())
        except BaseException:
            await process.end()
            raise
        if "failed" in first:
            await process.end()
            raise FrameError(f"the generator cannot be loaded: {first['failed']}")
        return process

    async def within(self, seconds: float, work: Any) -> Any:
        try:
            return await asyncio.wait_for(work, seconds)
        except TimeoutError:
            raise _Late from None

    async def call(self, request: Mapping[str, Any], stream: AsyncIterator[ItemGroup] | None, seconds: float) -> Any:
        await self.within(seconds, self._frames.send(request))
        if stream is not None:
            async for group in stream:
                await self.within(seconds, self._frames.send(group))
            await self.within(seconds, self._frames.send(None))
        return await self.within(seconds, self._frames.receive())

    async def end(self) -> str:
        """Kill it; how it ended."""
        self._child.kill()
        self._frames.close()
        return describe_exit(await self._waiting)


class GeneratorHooks:
    """The five functions of one generator, as `penstock.buffer.compat.hooks.Hooks` has them."""

    def __init__(self, found: Found, settings: ChildSettings, log_file: Path, *, deadline_seconds: float) -> None:
        self._found = found
        self._settings = settings
        self._log_file = log_file
        self._deadline_seconds = deadline_seconds
        self._lock = asyncio.Lock()
        self._process: _Process | None = None
        self._deaths_in_a_row = 0

    @property
    def overridden(self) -> frozenset[HookName]:
        """The functions that the generator brings."""
        return self._found.hooks

    @property
    def found(self) -> Found:
        """The generator whose functions these are."""
        return self._found

    async def get_group_data_meta_info(self, groups: AsyncIterator[ItemGroup]) -> dict[str, Any] | HookFault:
        """See `Hooks`."""
        async with self._batch():
            answer = await self._asked("get_group_data_meta_info", {}, groups)
        is_good = isinstance(answer, (HookFault, dict))
        told: dict[str, Any] | HookFault = answer if is_good else _fault("get_group_data_meta_info", f"it must give a dict, it gave {_shown(answer)}")
        return self._noted([told])[0]

    async def is_valid_group(self, groups: Sequence[ItemGroup], settings: HookSettings) -> list[tuple[bool, bool] | HookFault]:
        """See `Hooks`. A generator that answers with one bool instead of two means both."""
        request = {"task_type": settings.task_type, "min_valid_group_size": settings.min_valid_group_size}
        return self._noted([_verdict(answer) for answer in await self._each("is_valid_group", groups, request)])

    async def filter_item(self, groups: Sequence[ItemGroup], settings: HookSettings) -> list[list[bool] | HookFault]:
        """See `Hooks`."""
        return self._noted(await self._each("filter_item", groups, {"task_type": settings.task_type}))

    async def normalize_group_data(self, groups: Sequence[ItemGroup]) -> list[ItemGroup | HookFault]:
        """See `Hooks`."""
        answers = await self._each("normalize_group_data", groups, {})
        return self._noted([_group("normalize_group_data", answer, group) for answer, group in zip(answers, groups, strict=True)])

    async def pad_group_data(self, groups: Sequence[ItemGroup], settings: HookSettings) -> list[ItemGroup | HookFault]:
        """See `Hooks`."""
        answers = await self._each("pad_group_data", groups, {"group_size": settings.group_size})
        return self._noted([_padded(_group("pad_group_data", answer, group), settings.group_size) for answer, group in zip(answers, groups, strict=True)])

    async def close(self) -> None:
        """End the process; the next call starts another one, with the file as it is then."""
        async with self._lock:
            await self._end()

    def _noted(self, answers: list[T]) -> list[T]:
        """The same. What went wrong is told in the log, once for all groups: what they are dropped for names the function alone."""
        faults = [answer for answer in answers if isinstance(answer, HookFault)]
        if faults:
            wrong = f"{faults[0].hook} of generator {self._found.task_type} failed {len(faults)} of {len(answers)} times"
            # The message may quote an item, so it is shown as one line, whatever is in it.
            log.warning("%s, the first time by %r; its output is in %s", wrong, faults[0].message, self._log_file.name)
        return answers

    async def _each(self, hook: HookName, groups: Sequence[ItemGroup], request: Mapping[str, Any]) -> list[Any]:
        async with self._batch():
            return [await self._asked(hook, {**request, "group": group}) for group in groups]

    @contextlib.asynccontextmanager
    async def _batch(self) -> AsyncIterator[None]:
        """One call of the service at a time, each with its own patience."""
        async with self._lock:
            self._deaths_in_a_row = 0
            yield

    async def _asked(self, hook: HookName, request: Mapping[str, Any], stream: AsyncIterator[ItemGroup] | None = None) -> Any:
        """What a function answers, or the fault that it has."""
        if self._deaths_in_a_row >= MAX_DEATHS:
            return _fault(hook, f"its process died {MAX_DEATHS} times in a row")
        try:
            if self._process is None:
                self._process = await _Process.start(self._found, self._settings, self._log_file)
            told = await self._process.call({"hook": hook, **request}, stream, self._deadline_seconds)
        except (_Late, FrameError, OSError) as error:
            self._deaths_in_a_row += 1
            ended = await self._end()
            message = f"no answer within {self._deadline_seconds:g} s" if isinstance(error, _Late) else f"{error}{ended}"
            return _fault(hook, message)
        except BaseException:
            # Whoever asked has gone, in the middle of a sentence: the process would answer the wrong question next.
            await self._end()
            raise
        self._deaths_in_a_row = 0
        return told["answer"] if "answer" in told else _fault(hook, told["error"])

    async def _end(self) -> str:
        process, self._process = self._process, None
        return "" if process is None else f" ({await process.end()})"


def _fault(hook: HookName, message: str) -> HookFault:
    return HookFault(hook=hook, message=message)


def _verdict(answer: Any) -> tuple[bool, bool] | HookFault:
    if isinstance(answer, HookFault):
        return answer
    pair = [answer, answer] if isinstance(answer, bool) else answer
    if not isinstance(pair, list) or len(pair) != 2:
        return _fault("is_valid_group", f"it must give (is_valid, is_finished), it gave {_shown(answer)}")
    is_valid, is_finished = bool(pair[0]), bool(pair[1])
    if is_valid and not is_finished:
        return _fault("is_valid_group", "it calls a group valid that is not finished")
    return is_valid, is_finished


def _group(hook: HookName, answer: Any, asked: ItemGroup) -> ItemGroup | HookFault:
    if isinstance(answer, HookFault):
        return answer
    if not isinstance(answer, list) or len(answer) != 2 or not isinstance(answer[1], list) or not all(isinstance(item, dict) for item in answer[1]):
        return _fault(hook, f"it must give (instance_id, items), it gave {_shown(answer)}")
    for item in answer[1]:
        reward = item.get("reward")
        if reward is not None and not isinstance(reward, (int, float)):
            return _fault(hook, f"the reward of an item must be a number or None, it is {_shown(reward)}")
    return asked[0], answer[1]


def _padded(group: ItemGroup | HookFault, group_size: int) -> ItemGroup | HookFault:
    if isinstance(group, HookFault) or (group[1] and len(group[1]) % group_size == 0):
        return group
    return _fault("pad_group_data", f"it gave {len(group[1])} items, which is no multiple of the group size {group_size}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "..."
