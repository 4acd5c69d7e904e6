"""The buffer's process."""

from __future__ import annotations

import contextlib
import secrets
import sys
from collections.abc import AsyncIterator
from dataclasses import replace

import uvloop

from penstock.buffer.archive.archiver import archiving
from penstock.buffer.batches import BatchLog
from penstock.buffer.compat.generators.own_url import own_url
from penstock.buffer.compat.generators.routes import generator_routes
from penstock.buffer.compat.generators.running import Generators, GeneratorsConfig
from penstock.buffer.compat.routes import CompatRoutes
from penstock.buffer.compat.service import CompatService
from penstock.buffer.config import BufferConfig
from penstock.buffer.routes import OPERATIONS, buffer_routes
from penstock.buffer.service import BufferService
from penstock.buffer.store.sqlite import SqliteStore
from penstock.errors import StoreError
from penstock.httpd import Access, Scope, Token, bind, serve_app
from penstock.httpd.operations import direct_of
from penstock.process.garbage import collect_seldom

STORE_FILE = "store.sqlite"
"""Name of the store in the buffer's directory."""
_SWITCH_SECONDS = 0.0005
"""How long the event loop goes on when the store's writer wants to. The writer needs the interpreter only for a moment between two statements, and by
default it waits for it ten times as long, with all who wait for its commit."""


def serve_buffer(config: BufferConfig) -> None:
    """Serve the buffer in `config.directory` until SIGTERM. Raises `StoreError` or `ProcessError` if it cannot start."""
    with contextlib.suppress(KeyboardInterrupt):
        # A write is mostly the price of its request, and this loop's is half of the other's.
        uvloop.run(_serve(config))


async def _serve(config: BufferConfig) -> None:
    # First, so that a port in use leaves nothing behind.
    listener = bind(config.access.host, config.port)
    try:
        config.directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot make {config.directory}: {error.strerror}") from None
    store = SqliteStore(config.directory / STORE_FILE, max_bytes=config.max_bytes)
    batches = BatchLog(config.metrics, config.directory / "metrics")
    service = BufferService(store, expire_seconds=config.expire_seconds, max_waiting=config.max_waiting, on_batch=batches)
    access, token = _with_own_token(config.access)
    archive_directory = config.archive_directory or config.directory / "archive"
    async with (
        service.running(),
        archiving(service, config.archive, store_directory=config.directory, directory=archive_directory),
        _compatible(service, config, listener.getsockname()[1], token) as app,
    ):
        # Groups that wait are many and free of cycles; to look through them again and again is a tenth of a write, and more of a read.
        collect_seldom()
        sys.setswitchinterval(_SWITCH_SECONDS)
        direct = (*app.direct, *direct_of(OPERATIONS, service))
        await serve_app(app, access, listener, port_file=config.port_file, direct=direct, shapes=app.shapes)


def _with_own_token(access: Access) -> tuple[Access, str | None]:
    """Where tokens are wanted: one more, for the generators that this process starts. It may only write, and nobody knows it when they have ended."""
    if not access.known_tokens:
        return access, None
    value = secrets.token_urlsafe(24)
    return replace(access, tokens=(*access.tokens, Token(value=value, scopes=frozenset({Scope.PRODUCE})))), value


@contextlib.asynccontextmanager
async def _compatible(service: BufferService, config: BufferConfig, port: int, token: str | None) -> AsyncIterator[CompatRoutes]:
    """The native app behind the compatible routes; generators end with it."""
    compat = CompatService(service, config.compat, lambda task_type: generators.hooks(task_type))
    generators = Generators(
        GeneratorsConfig(
            directory=config.directory,
            folders=config.generators,
            data_root=config.data_root,
            buffer_url=own_url(config.access.host, port),
            buffer_host=config.access.host,
            group_size=config.compat.group_size,
            token=token,
        ),
        compat.finished_ids,
    )
    try:
        async with compat.running():
            yield CompatRoutes(buffer_routes(service, *generator_routes(generators)), compat, generators)
    finally:
        await generators.close()
