"""Episodes that are under way, by name: what each waits for and since when, in the worker's log and in a file that `penstock status` reads."""

from __future__ import annotations

import contextlib
import heapq
import logging
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from penstock.clock import Clock
from penstock.process.identity import ProcessId, identify, process_table

log = logging.getLogger(__name__)

MOST_SHOWN = 5
"""Episodes in a worker's file, and in what `penstock status` shows of all workers together."""
STALE_SECONDS = 60.0
"""A file that was written longer ago is that of a worker that is gone, wherever it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningEpisode:
    """An episode as it stood when somebody looked."""

    uid: str
    steps: int | None
    """That it has done; None if only the agent knows."""
    waits_for: str
    waited_seconds: float
    """For that alone."""
    age_seconds: float
    """Since it began."""

    def __str__(self) -> str:
        done = "" if self.steps is None else f"{self.steps} steps done, "
        return f"{self.uid}: {self.age_seconds:.0f} s old, {done}waits for {self.waits_for} since {self.waited_seconds:.0f} s"


@dataclass(slots=True, eq=False)
class Wait:
    """What an episode waits for. Whoever plays it has one and changes it from wait to wait."""

    waits_for: str = ""
    since: float = 0.0
    steps: int | None = 0
    began: float = 0.0
    """When the episode began; set by `Running`."""


class Running:
    """The episodes of one worker that are under way. Times are readings of one monotonic clock."""

    def __init__(self) -> None:
        self._waits: dict[str, Wait] = {}
        self._told: set[str] = set()

    @contextlib.contextmanager
    def waiting(self, uid: str, waits_for: str, *, now: float, steps: int | None = 0) -> Iterator[None]:
        """An episode waits for something, for the time of a block. Blocks nest: the outermost is the whole episode, the innermost is what is shown."""
        outer = self.show(uid, Wait(waits_for, now, steps))
        try:
            yield
        finally:
            self.show_again(uid, outer)

    def show(self, uid: str, wait: Wait) -> Wait | None:
        """Show this of an episode from now on, and give what was shown before: to be shown again afterwards."""
        outer = self._waits.get(uid)
        wait.began = wait.since if outer is None else outer.began
        self._waits[uid] = wait
        return outer

    def show_again(self, uid: str, outer: Wait | None) -> None:
        """A wait is over. Without an outer one, so is the episode."""
        if outer is not None:
            self._waits[uid] = outer
        else:
            del self._waits[uid]
            self._told.discard(uid)

    def __len__(self) -> int:
        return len(self._waits)

    def find(self, uid: str, now: float) -> RunningEpisode | None:
        """How an episode stands; None if it is not under way."""
        wait = self._waits.get(uid)
        return None if wait is None else _shown(uid, wait, now)

    def slowest(self, now: float, count: int = MOST_SHOWN) -> tuple[RunningEpisode, ...]:
        """Those that have been under way for longest, oldest first."""
        return tuple(_shown(uid, wait, now) for uid, wait in heapq.nsmallest(count, self._waits.items(), key=lambda item: item[1].began))

    def newly_slow(self, now: float, bound_seconds: float) -> list[RunningEpisode]:
        """Those that are older than the bound and were not given before, oldest first."""
        slow = [(uid, wait) for uid, wait in self._waits.items() if now - wait.began > bound_seconds and uid not in self._told]
        self._told.update(uid for uid, _ in slow)
        return [_shown(uid, wait, now) for uid, wait in sorted(slow, key=lambda item: item[1].began)]


def _shown(uid: str, wait: Wait, now: float) -> RunningEpisode:
    return RunningEpisode(uid=uid, steps=wait.steps, waits_for=wait.waits_for, waited_seconds=now - wait.since, age_seconds=now - wait.began)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """What a worker's file says."""

    worker: str
    in_flight: int
    slowest: tuple[RunningEpisode, ...]
    written_at: float
    """Seconds since 1970."""
    process: ProcessId | None = None
    """The worker's own."""
    process_table: str = ""
    """Where that number means it."""

    @property
    def is_of_the_dead(self) -> bool:
        """Whether the worker is known to be gone. Of one on another machine nobody here can tell."""
        return self.process is not None and self.process_table == process_table() != "" and not self.process.is_alive


class SlowReporter:
    """Tells of slow episodes: each once in the log, the slowest few of the moment in a file (if there is a path for it)."""

    def __init__(self, running: Running, worker: str, path: Path | None, *, slow_seconds: float, clock: Clock) -> None:
        self._running, self._worker, self._path, self._slow_seconds, self._clock = running, worker, path, slow_seconds, clock
        self._process, self._process_table = identify(os.getpid()), process_table()

    def tell(self) -> None:
        """To be called every second or so. One line of log at most, however many are slow."""
        now = self._clock.monotonic()
        slow = self._running.newly_slow(now, self._slow_seconds)
        if slow:
            log.warning("%d more episodes are slower than %g s; the slowest of them is %s", len(slow), self._slow_seconds, slow[0])
        if self._path is not None:
            view = WorkerView(
                worker=self._worker,
                in_flight=len(self._running),
                slowest=self._running.slowest(now),
                written_at=self._clock.now(),
                process=self._process,
                process_table=self._process_table,
            )
            with contextlib.suppress(OSError):  # a full disk must not end episodes because nobody can look at them
                _write(self._path, view)

    def close(self) -> None:
        """The worker leaves: nothing of it is under way."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)


def _write(path: Path, view: WorkerView) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(msgspec.json.encode(view))
    temporary.replace(path)


def read_views(directory: Path, now: float) -> list[WorkerView]:
    """What the workers of a run have written there lately. Files of workers that are gone, and those that cannot be read, are left out."""
    views = []
    for path in sorted(directory.glob("[!.]*.json")):
        with contextlib.suppress(OSError, msgspec.DecodeError):
            views.append(msgspec.json.decode(path.read_bytes(), type=WorkerView))
    return [view for view in views if now - view.written_at <= STALE_SECONDS and not view.is_of_the_dead]


def describe_slowest(views: Iterable[WorkerView], now: float) -> str:
    """The slowest episodes of all workers, in words; empty if nothing is under way."""
    views = list(views)
    if not any(view.slowest for view in views):
        return ""
    aged = [(max(0.0, now - view.written_at), view, episode) for view in views for episode in view.slowest]
    slowest = heapq.nlargest(MOST_SHOWN, aged, key=lambda item: item[0] + item[2].age_seconds)
    lines = [f"{sum(view.in_flight for view in views)} episodes under way; the slowest:"]
    for silent_seconds, view, episode in slowest:
        # A worker writes every second. One that does not is held up itself, by an environment that blocks it.
        silence = f", silent for {silent_seconds:.0f} s" if silent_seconds > 5 else ""
        lines.append(f"  {episode} ({view.worker}{silence})")
    return "\n".join(lines)
