"""Looks at a live run: its metrics file, its buffer, its servers. A part that does not answer leaves what was known of it."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp

from penstock.buffer.api import RunStatus
from penstock.buffer.intake import decode_rollout
from penstock.chat import ChatTemplate
from penstock.clock import Clock, SystemClock
from penstock.dashboard.following import Follower
from penstock.dashboard.history import History
from penstock.dashboard.replies import ShownReply, most_telling, shown
from penstock.dashboard.snapshot import Part, Snapshot
from penstock.errors import PenstockError
from penstock.process.credentials import authorization
from penstock.wire import read_body

_ANSWER_SECONDS = 1.0
_TOKENS_LINE = "penstock_inference_tokens_sampled "
_REPLIES_A_LOOK = 6
_RATES_KEPT = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What the orchestrator knows of a run."""

    phase: str
    updates: int
    updates_done: int = 0
    parts: tuple[Part, ...] = ()
    buffer_url: str = ""
    server_urls: tuple[str, ...] = ()


@dataclass(slots=True)
class _Rate:
    """How fast a counter grows."""

    values: deque[float] = field(default_factory=lambda: deque(maxlen=_RATES_KEPT))
    _last: tuple[float, float] | None = None

    def seen(self, now: float, count: float | None) -> None:
        """The counter stood at `count`; None: nobody answered, which is no growth. One that fell belongs to a server that was started again."""
        if self._last is not None:
            grown = 0.0 if count is None or count < self._last[1] else count - self._last[1]
            self.values.append(grown / max(now - self._last[0], 1e-9))
        if count is not None:
            self._last = (now, count)
        elif self._last is not None:
            self._last = (now, self._last[1])


class Asker:
    """Makes snapshots of one run. Use as a context."""

    def __init__(self, run: str, run_dir: Path, model: Path, *, started: float | None = None, clock: Clock | None = None) -> None:
        """`started`: when the run began, on the monotonic clock; now if not given."""
        self._run, self._run_dir = run, run_dir
        self._clock = clock or SystemClock()
        self._started = self._clock.monotonic() if started is None else started
        self._template = ChatTemplate.load(model)
        self._metrics = Follower(run_dir / "metrics.jsonl")
        self.history = History()
        self._rate = _Rate()
        self._status: RunStatus | None = None
        self._reply: ShownReply | None = None
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._http = aiohttp.ClientSession(headers=authorization(), timeout=aiohttp.ClientTimeout(total=_ANSWER_SECONDS))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._http is not None:
            await self._http.close()

    async def look(self, standing: Standing, events: Sequence[str] = ()) -> Snapshot:
        """How the run stands now."""
        for line in self._metrics.lines():
            self.history.add(line)
        await self._look_at_servers(standing.server_urls)
        if standing.buffer_url:
            await self._look_at_buffer(standing.buffer_url)
        return self._snapshot(standing, events)

    @property
    def status(self) -> RunStatus | None:
        """What the buffer said last."""
        return self._status

    async def _look_at_servers(self, urls: Sequence[str]) -> None:
        if not urls:
            return
        counts = [_tokens_sampled(body) for url in urls if (body := await self._get(f"{url}/metrics")) is not None]
        self._rate.seen(self._clock.monotonic(), sum(counts) if len(counts) == len(urls) else None)

    async def _look_at_buffer(self, url: str) -> None:
        body = await self._get(f"{url}/v1/runs/{self._run}")
        if body is not None:
            self._status = read_body(body, RunStatus)
        found = [reply for uid in self._newest_uids() if (reply := await self._fetch_reply(url, uid)) is not None]
        self._reply = most_telling(found, self._reply)

    async def _fetch_reply(self, url: str, uid: str) -> ShownReply | None:
        body = await self._get(f"{url}/v1/runs/{self._run}/rollouts/{uid}")
        if body is None:
            return None
        with contextlib.suppress(PenstockError):
            rollout = decode_rollout(body, "msgpack")
            return shown(rollout, self._template.decode) if rollout.status.usable else None
        return None

    def _newest_uids(self) -> list[str]:
        """Of the rollouts that were acknowledged last."""
        lines: list[str] = []
        for path in sorted((self._run_dir / "acks").glob("*.log")):
            with path.open("rb") as file:
                file.seek(max(0, file.seek(0, 2) - 4096))
                lines += file.read().decode(errors="replace").splitlines()[1:-1][-_REPLIES_A_LOOK:]
        return [line.split(" ")[0] for line in lines[-_REPLIES_A_LOOK:]]

    async def _get(self, url: str) -> bytes | None:
        """The body of a good answer, if one comes in time."""
        assert self._http is not None, "use it as a context: async with Asker(...)"
        try:
            async with self._http.get(url) as response:
                return await response.read() if response.status == 200 else None
        except (aiohttp.ClientError, TimeoutError):
            return None

    def _snapshot(self, standing: Standing, events: Sequence[str]) -> Snapshot:
        history, status = self.history, self._status
        groups: dict[str, int] = {}
        for environment in status.environments.values() if status is not None else ():
            for state, count in environment.groups.items():
                groups[state] = groups.get(state, 0) + count
        return Snapshot(
            run=self._run,
            phase=standing.phase,
            elapsed_seconds=self._clock.monotonic() - self._started,
            updates=standing.updates,
            updates_done=max(standing.updates_done, status.next_update if status is not None else 0),
            rewards=tuple(value for _, value in history.reward()),
            lags=tuple(value for _, value in history.curve("off_policy/lag/mean")),
            lag_max=int(max((value for _, value in history.curve("off_policy/lag/max")), default=0.0)),
            max_lag=status.laws.max_lag if status is not None else 0,
            greedy=tuple(history.evaluations("greedy")),
            sampled=tuple(history.evaluations("avg@")),
            sampled_per_second=tuple(self._rate.values),
            trained_per_second=history.tokens_per_second(),
            groups=groups,
            imbalance=status.imbalance if status is not None else 0,
            term=max(history.term, status.term.term if status is not None and status.term is not None else 0),
            replay=history.replays[-1] if history.replays else None,
            mismatch_max=max((value for _, value in history.curve("mismatch/max")), default=0.0),
            mismatch_tokens=int(sum(value for _, value in history.curve("mismatch/tokens"))),
            parts=standing.parts,
            reply=self._reply,
            events=tuple(events),
        )


def _tokens_sampled(body: bytes) -> float:
    for line in body.decode().splitlines():
        if line.startswith(_TOKENS_LINE):
            return float(line.removeprefix(_TOKENS_LINE))
    return 0.0
