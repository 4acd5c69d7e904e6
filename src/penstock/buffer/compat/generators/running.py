"""Runs generators: finds them, starts one when a client names its task type, watches it, stops it."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from penstock.buffer.compat.generators.describing import Described
from penstock.buffer.compat.generators.discovery import Discovery, Found, discover
from penstock.buffer.compat.generators.frames import FrameError
from penstock.buffer.compat.generators.hooks import GeneratorHooks
from penstock.buffer.compat.generators.lives import GeneratorState, Life, without
from penstock.buffer.compat.generators.own_url import opened_url
from penstock.buffer.compat.generators.payload import PayloadDefaults, read_payload
from penstock.buffer.compat.generators.processes import ChildSettings, start_generator_process
from penstock.buffer.compat.hooks import Hooks
from penstock.errors import ConfigError, ConflictError, ProcessError, UnknownError
from penstock.process.logs import last_lines

log = logging.getLogger(__name__)

DEFAULT_FOLDER = Path("generator")
"""Under the working directory; looked into if it is there."""
MAX_LOG_BYTES = 64 * 1024 * 1024
"""A log that is larger is put aside at the next start."""
_CLOSE_SECONDS = 1.5
"""A server that stops has 10 s for everything."""


async def _none_finished(_: str) -> Sequence[str]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorsConfig:
    """How generators are found and run."""

    directory: Path
    """Where their logs are: the buffer's directory."""
    folders: tuple[Path, ...] = ()
    """Folders of generator files, beside `generator/` under the working directory."""
    data_root: Path = field(default_factory=Path.cwd)
    """`input_file` must lie under it."""
    buffer_url: str = ""
    """Where a generator writes to if nobody tells it."""
    buffer_host: str = "127.0.0.1"
    """What the buffer listens on; it says which other URLs are the buffer's, too."""
    group_size: int | None = None
    """Repeats of a problem if nobody says how many."""
    token: str | None = None
    """What a generator tells the buffer, if the buffer wants a token. Stands in the URL that it is given, and never in what is told about it."""
    stop_seconds: float = 5.0
    """Time for a generator to end well when it is told to stop."""
    hook_seconds: float = 30.0
    """Time for one call of a generator's own function."""

    def __post_init__(self) -> None:
        for folder in self.folders:
            if not folder.is_dir():
                raise ConfigError(f"--generators: {folder} is not a folder")
        if not self.data_root.is_dir():
            raise ConfigError(f"--data-root: {self.data_root} is not a folder")


class Generators:
    """All generators of a buffer. Make it in the event loop of the service, `close` it there.

    `finished_ids(task_type)` gives the instances that the store has finished, once for each pass: a started generator is told to skip them.
    """

    def __init__(self, config: GeneratorsConfig, finished_ids: Callable[[str], Awaitable[Sequence[str]]] = _none_finished) -> None:
        self._config = config
        self._finished_ids = finished_ids
        self._lock = asyncio.Lock()
        self._lives: dict[str, Life] = {}
        self._hooks: dict[str, GeneratorHooks] = {}
        self._told: set[tuple[Path, str]] = set()
        self._settings = self._child_settings()
        self._described = Described(self._settings, config.directory / "generators" / "describe.log")
        self._discovery = self._seen()
        # What must be run to be known may take long; the service need not wait for it.
        self._looking = asyncio.create_task(self._look_by_itself())

    @property
    def discovery(self) -> Discovery:
        """What was found when it was last looked."""
        return self._discovery

    async def start(self, payload: dict[str, Any]) -> GeneratorState:
        """Start the generator that `payload["task_type"]` names.

        One runs at a time, because the items that come are taken for those of the newest. While it does, the same payload again is answered with its
        state and starts nothing; another one, or that of another generator, raises `ConflictError`. Raises `InvalidError` for a payload that it cannot
        be given, `UnknownError` for a task type that nobody has.
        """
        config = self._config
        defaults = PayloadDefaults(data_root=config.data_root, buffer_url=config.buffer_url, group_size=config.group_size)
        data = read_payload(payload, defaults)
        task_type = data["task_type"]
        async with self._lock:
            await self._look()
            found = self._discovery.found.get(task_type)
            if found is None:
                raise UnknownError(f"no generator has TASK_TYPE {task_type[:200]!r}; there are {', '.join(sorted(self._discovery.found))}")
            running = self._lives.get(task_type)
            if running is not None and not running.is_over:
                if _told_apart(running.payload) == _told_apart(data):
                    return running.shown()
                raise ConflictError(f"generator {task_type} is running with another payload; stop it first: POST /generators/{quote(task_type)}/stop")
            other = next((name for name, life in self._lives.items() if not life.is_over), None)
            if other is not None:
                raise ConflictError(f"generator {other} is running, and items do not say whose they are; stop it first: POST /generators/{quote(other)}/stop")
            data["skip_instance_ids"] = merged(data["skip_instance_ids"], await self._finished_ids(task_type))
            await self._renew_hooks(task_type)
            self._lives[task_type] = life = await self._begin(found, data)
            return life.shown()

    async def stop(self, task_type: str) -> GeneratorState:
        """Stop a generator, with all that it has started: SIGTERM, and SIGKILL after `stop_seconds`. Does nothing for one that has ended."""
        async with self._lock:
            life = self._lives.get(task_type)
            if life is None:
                raise UnknownError(f"generator {task_type[:200]!r} was never started")
            await self._stop(life, self._config.stop_seconds)
            return life.shown()

    async def look_again(self) -> None:
        """Look into the folders for what has come and gone; not while one is started or stopped, which looks by itself or takes long."""
        if not self._lock.locked():
            await self._look_by_itself()

    def states(self) -> list[GeneratorState]:
        """How each known generator stands, by task type."""
        idle = {
            found.task_type: GeneratorState(task_type=found.task_type, file=found.path.name, functions=tuple(sorted(found.hooks)))
            for found in self._discovery.found.values()
        }
        started = {task_type: life.shown() for task_type, life in self._lives.items()}
        return [state for _, state in sorted({**idle, **started}.items())]

    def logs(self, task_type: str, num_lines: int = 100) -> list[str]:
        """The end of a generator's log; empty if it was never started."""
        if task_type not in self._discovery.found and task_type not in self._lives:
            raise UnknownError(f"no generator has TASK_TYPE {task_type[:200]!r}")
        return [without(line, self._config.token) for line in last_lines(self._log_file(task_type, ".log"), num_lines)]

    def hooks(self, task_type: str) -> Hooks | None:
        """The functions that the generator of a task type brings; None if it brings none."""
        found = self._discovery.found.get(task_type)
        if found is None or not found.hooks:
            return None
        known = self._hooks.get(task_type)
        if known is None or known.found != found:
            known = GeneratorHooks(found, self._settings, self._log_file(task_type, ".hooks.log"), deadline_seconds=self._config.hook_seconds)
            self._hooks[task_type] = known
        return known

    async def close(self) -> None:
        """Stop everything."""
        self._looking.cancel()
        await asyncio.gather(self._looking, return_exceptions=True)
        async with self._lock:
            lives = [self._stop(life, min(self._config.stop_seconds, _CLOSE_SECONDS)) for life in self._lives.values()]
            await asyncio.gather(*lives, *(hooks.close() for hooks in self._hooks.values()))

    async def _begin(self, found: Found, payload: dict[str, Any]) -> Life:
        log_file = self._log_file(found.task_type, ".log")
        if log_file.exists() and log_file.stat().st_size > MAX_LOG_BYTES:
            log_file.replace(log_file.with_name(log_file.name + ".1"))
        config, told = self._config, dict(payload)
        if config.token is not None:
            told["remote_buffer_url"] = opened_url(payload["remote_buffer_url"], config.buffer_url, config.buffer_host, config.token)
        try:
            child, frames = await start_generator_process("rollout", found.path, self._settings, log_file, {"payload": told})
        except (OSError, FrameError) as error:
            raise ProcessError(f"generator {found.task_type} cannot be started: {error}") from None
        life = Life(found, payload, log_file, child, frames, secret=config.token)
        life.watcher = asyncio.create_task(life.watch())
        log.info("generator %s (%s) runs as process %d", found.task_type, found.path.name, child.id.pid)
        return life

    async def _renew_hooks(self, task_type: str) -> None:
        """Let go of functions that are not those of their file any more; the file that is about to be run may have changed, too."""
        for name, hooks in list(self._hooks.items()):
            if name == task_type or self._discovery.found.get(name) != hooks.found:
                del self._hooks[name]
                await hooks.close()

    async def _stop(self, life: Life, grace_seconds: float) -> None:
        if life.is_over:
            return
        life.is_stopping = True
        await life.child.stop(grace_seconds)
        assert life.watcher is not None
        await life.watcher

    async def _look_by_itself(self) -> None:
        async with self._lock:
            await self._look()

    async def _look(self) -> None:
        """Look for generators, and run those files that must be run to be known."""
        for path in self._seen().unsure:
            await self._described.learn(path)
        self._discovery = self._seen()

    def _seen(self) -> Discovery:
        """What is to be seen now; what is refused is told once."""
        discovery = discover(self._settings.folders, self._described)
        for refused in discovery.refused:
            if (refused.path, refused.reason) not in self._told:
                self._told.add((refused.path, refused.reason))
                log.warning("%s is not used as a generator: %s", refused.path, refused.reason)
        return discovery

    def _child_settings(self) -> ChildSettings:
        folders = tuple(dict.fromkeys(folder.resolve() for folder in (DEFAULT_FOLDER, *self._config.folders)))
        # Not the server's own secrets: a generator writes items, and needs no more than that.
        return ChildSettings(folders=folders, environment={"PENSTOCK_TOKENS": "", "PENSTOCK_TOKEN": self._config.token or "", "PYTHONUNBUFFERED": "1"})

    def _log_file(self, task_type: str, suffix: str) -> Path:
        return self._config.directory / "generators" / (quote(task_type, safe="")[:200] + suffix)


def merged(ids: Sequence[str | int], finished: Sequence[str]) -> list[str | int]:
    """Ids to skip: those of the client, and those that the store has finished more often than the client says.

    >>> merged(["a", 7], ["a", "a", "7", "b"])
    ['a', 7, 'a', 'b']
    """
    known = Counter(str(id) for id in ids)
    more: list[str | int] = []
    for id in finished:
        if known[id] > 0:
            known[id] -= 1
        else:
            more.append(id)
    return [*ids, *more]


def _told_apart(payload: dict[str, Any]) -> dict[str, Any]:
    """What makes a payload another one: not what is to be skipped, which changes while it runs."""
    return {key: value for key, value in payload.items() if key != "skip_instance_ids"}
