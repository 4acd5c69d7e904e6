"""The gateway's process."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from collections import Counter

import aiohttp
import msgspec
import uvloop

from penstock.buffer.api import Written
from penstock.buffer.client import BufferClient
from penstock.chat import ChatTemplate
from penstock.clock import Clock, SystemClock
from penstock.errors import ConfigError, PenstockError, StoreError, UnknownError
from penstock.gateway.app import Gateway
from penstock.gateway.config import GatewayConfig
from penstock.gateway.engine import HttpEngine
from penstock.gateway.events import Stored
from penstock.gateway.journal import BufferJournal
from penstock.gateway.session import Surroundings
from penstock.gateway.sessions import Sessions
from penstock.gateway.slots import Slots
from penstock.gateway.streams import TokenTexts
from penstock.httpd import bind, serve_app
from penstock.types import Laws, Rollout

log = logging.getLogger(__name__)

VERSION_SECONDS = 1.0
"""How long the run's version is believed without asking again, for engines that do not name theirs."""


def serve_gateway(config: GatewayConfig) -> None:
    """Serve until SIGTERM or SIGINT. Raises `ConfigError` for wrong settings, `StoreError` if the buffer does not answer at the start."""
    # First, so that a port in use and a wrong model are told before anybody waits for anything.
    listener = bind(config.access.host, config.port)
    template = ChatTemplate.load(config.model, template=config.template)

    async def serve() -> None:
        run = config.run or await _only_run(config)
        async with BufferClient(config.buffer_url, run, token=config.token) as client:
            published = Published(client, SystemClock())
            async with HttpEngine(config.engines, token=config.token, policy=config.policy, version=published.version) as engine:
                if config.open_run:
                    await _open_run(client, config)
                else:
                    await _find_run(client)
                counts: Counter[str] = Counter()

                def count(name: str, number: int) -> None:
                    counts[name] += number

                around = Surroundings(
                    template=template,
                    engine=engine,
                    journal=BufferJournal(client, config.name),
                    limits=config.limits,
                    max_tokens=config.max_tokens,
                    count=count,
                )
                slots = Slots(client, estimate_tokens=config.max_tokens)
                sessions = Sessions(around, BufferSink(client).write, find_slot=slots.slot, manner=config.manner, policy=config.policy)
                recovered = await sessions.recover()
                log.info("run %s; %d sessions of an earlier life go on", run, recovered)
                texts = TokenTexts(template.decode, frozenset(template.eos_ids))
                gateway = Gateway(sessions, texts, counts, models=(config.model.resolve().name,), public_url=config.public_url)

                async def ready() -> bool:
                    try:
                        await client.newest_version()
                        return bool(await asyncio.gather(*(engine.model(url) for url in config.engines)))
                    except (PenstockError, aiohttp.ClientError, TimeoutError):
                        return False

                _spare_the_collector()
                await serve_app(gateway.app(ready), config.access, listener, port_file=config.port_file, direct=gateway.direct)

    uvloop.run(serve())


class BufferSink:
    """Writes rollouts of sessions to the buffer."""

    def __init__(self, client: BufferClient) -> None:
        self._client = client

    async def write(self, rollout: Rollout) -> Stored:
        """Store a rollout. Written again, it is the same. Raises `StoreError` if the buffer does not answer."""
        # All that it holds was looked at when it was recorded.
        (written,) = await self._client.write([rollout], checked=False)
        if written.code is not None:
            log.warning("the buffer refuses rollout %s: %s", rollout.rollout_uid, written.message)
        return Stored(fate=_fate(written), message=written.message or "", digest=written.digest)


def _fate(written: Written) -> str:
    # A duplicate was accepted by a write whose answer got lost.
    return written.code or ("stale" if written.stale else "accepted")


class Published:
    """The newest version of a run, asked for at most once a second."""

    def __init__(self, client: BufferClient, clock: Clock) -> None:
        self._client, self._clock = client, clock
        self._known: int | None = None
        self._until = 0.0
        self._lock = asyncio.Lock()

    async def version(self) -> int:
        """The version that engines serve, as far as the run knows. Raises `StoreError` if nobody ever said."""
        if self._known is not None and self._clock.monotonic() < self._until:
            return self._known
        async with self._lock:
            if self._known is None or self._clock.monotonic() >= self._until:
                self._until = self._clock.monotonic() + VERSION_SECONDS
                self._known = (await self._client.newest_version()).version
            return self._known


def _spare_the_collector() -> None:
    """Look for garbage in cycles less often, and never in what was there at the start: sessions leave hardly any, and looking goes over all that are open."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


async def _only_run(config: GatewayConfig) -> str:
    """The run that the buffer has, if it has one. Raises `ConfigError` if one must be named."""
    headers = {"Authorization": f"Bearer {config.token}"} if config.token else {}
    try:
        async with aiohttp.ClientSession(headers=headers) as http, http.get(f"{config.buffer_url.rstrip('/')}/v1/runs") as answer:
            runs = [run if isinstance(run, str) else run["run"] for run in msgspec.json.decode(await answer.read())["runs"]]
    except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError, KeyError, TypeError) as error:
        raise StoreError(f"the buffer at {config.buffer_url} does not say which runs it has: {error}") from None
    if len(runs) != 1:
        raise ConfigError(f"--run: the buffer has {len(runs)} runs{': ' + ', '.join(runs) if runs else ''}; name one (with --open-run, a new one)")
    return str(runs[0])


async def _find_run(client: BufferClient) -> None:
    try:
        await client.status()
    except UnknownError as error:
        raise ConfigError(f"--run: {error}; --open-run opens it") from None


async def _open_run(client: BufferClient, config: GatewayConfig) -> None:
    """Open the run under the default laws, if it is not there; version 0 is what the engine serves now."""
    with contextlib.suppress(UnknownError):
        await client.status()
        return
    digest, headers = "0" * 32, {"Authorization": f"Bearer {config.token}"} if config.token else {}
    with contextlib.suppress(aiohttp.ClientError, TimeoutError, msgspec.DecodeError, KeyError, TypeError):
        url = f"{config.engines[0].rstrip('/')}/v1/weights"
        async with aiohttp.ClientSession(headers=headers) as http, http.get(url) as answer:
            digest = str(msgspec.json.decode(await answer.read())["digest"])
    await client.open_run(Laws(), digest)
