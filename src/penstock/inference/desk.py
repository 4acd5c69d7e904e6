"""Where weights are handed in: one at a time, fenced by term, verified before the engine switches."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from penstock.errors import ConflictError, FencedError, InvalidError
from penstock.inference.loop import EngineLoop
from penstock.inference.weights import served_from_digest
from penstock.models.weights import weights_path
from penstock.process.points import reach
from penstock.wire import check_id, parse_json

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """What `POST /v1/weights` says: these are the newest weights."""

    policy: str
    version: int
    digest: str
    term: int | None = None
    """Term of the learner that publishes; an older one than was seen before is refused."""


def read_push(body: bytes) -> Push:
    """The push that `body` spells. Raises `InputError`. Other fields of a manifest are let through."""
    fields = parse_json(body)
    if not isinstance(fields, dict):
        raise InvalidError("the body must be a JSON object with policy, version and digest")
    for name in ("policy", "digest"):
        if not isinstance(fields.get(name), str):
            raise InvalidError(f"{name} must be a text, got {fields.get(name)!r:.80}")
    return Push(
        policy=check_id(fields["policy"], "policy"),
        version=_count(fields, "version"),
        digest=fields["digest"],
        term=None if fields.get("term") is None else _count(fields, "term"),
    )


def _count(fields: dict[str, Any], name: str) -> int:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidError(f"{name} must be an integer of 0 or more, got {value!r:.80}")
    return value


class WeightsDesk:
    """Takes pushes for one engine."""

    def __init__(self, loop: EngineLoop, weights_dir: Path | None, on_swap: Literal["recompute", "keep"]) -> None:
        self._loop = loop
        self._weights_dir = weights_dir
        self._keeps_kv = on_swap == "keep"
        self._lock = asyncio.Lock()
        self._term = -1
        served = loop.engine.served
        self._newest = (served.version, served.digest)
        """What the server was told is newest."""

    @property
    def is_newest(self) -> bool:
        """Whether the engine serves what it was told is newest."""
        served = self._loop.engine.served
        return (served.version, served.digest) == self._newest

    @property
    def newest_version(self) -> int:
        """Number of the newest weights that the server was told of."""
        return self._newest[0]

    def shown(self) -> dict[str, Any]:
        """What is served now."""
        served = self._loop.engine.served
        return {"policy": served.policy, "version": served.version, "digest": served.digest, "newest_version": self._newest[0]}

    async def take(self, push: Push) -> dict[str, Any]:
        """Serve `push` from the next token on, and say what is served. Whatever fails leaves the old weights serving."""
        async with self._lock:
            served = self._loop.engine.served
            if push.policy != served.policy:
                raise InvalidError(f"this server samples for policy {served.policy!r}, not {push.policy!r}")
            if push.term is not None and push.term < self._term:
                raise FencedError(f"term {push.term} is over; term {self._term} has published since")
            if push.term is not None and push.term == self._term and push.version < self._newest[0]:
                raise ConflictError(f"term {push.term} has published version {self._newest[0]}: version {push.version} comes too late")
            if self._weights_dir is None:
                raise InvalidError("this server was started without a weights directory")
            weights_path(self._weights_dir, push.digest)  # refuses what is no digest, before anything is remembered
            if push.version == served.version and push.digest != served.digest:
                raise ConflictError(f"version {push.version} is {served.digest} here: a version is never used for other weights")
            self._term = self._term if push.term is None else push.term
            self._newest = (push.version, push.digest)
            if (push.version, push.digest) != (served.version, served.digest):
                await self._swap(push, self._weights_dir)
            return self.shown()

    async def _swap(self, push: Push, weights_dir: Path) -> None:
        engine, events = self._loop.engine, asyncio.get_running_loop()
        architecture = engine.served.weights.architecture
        new = await asyncio.to_thread(served_from_digest, weights_dir, architecture, policy=push.policy, version=push.version, digest=push.digest)
        reach("server.before_swap")
        start = events.time()
        await self._loop.call(lambda: engine.swap(new, keep_kv=self._keeps_kv))
        reach("server.after_swap")
        log.info("version %d (%s) is served; replies stood still for %.3f s", push.version, push.digest, events.time() - start)
