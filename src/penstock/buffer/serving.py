"""The buffer's process."""

from __future__ import annotations

import asyncio
import contextlib

from penstock.buffer.archive.archiver import archiving
from penstock.buffer.batches import BatchLog
from penstock.buffer.config import BufferConfig
from penstock.buffer.routes import buffer_routes
from penstock.buffer.service import BufferService
from penstock.buffer.store.sqlite import SqliteStore
from penstock.errors import StoreError
from penstock.httpd import bind, serve_app

STORE_FILE = "store.sqlite"
"""Name of the store in the buffer's directory."""


def serve_buffer(config: BufferConfig) -> None:
    """Serve the buffer in `config.directory` until SIGTERM. Raises `StoreError` or `ConfigError` if it cannot start."""
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(config))


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
    archive_directory = config.archive_directory or config.directory / "archive"
    async with service.running(), archiving(service, config.archive, store_directory=config.directory, directory=archive_directory):
        await serve_app(buffer_routes(service), config.access, listener, port_file=config.port_file)
