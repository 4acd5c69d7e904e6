"""Start and stop of a server process: one line if it cannot start, a drain when it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from penstock.errors import ProcessError
from penstock.httpd.direct import DirectRoute, Refused
from penstock.httpd.guard import Access, Door, Guard
from penstock.httpd.lane import Lane
from penstock.httpd.limits import allow_descriptors
from penstock.httpd.protocol import protocol_under

log = logging.getLogger(__name__)

DRAIN_SECONDS = 8
"""Requests under way may end in this time after SIGTERM; a process is gone within 10 s."""


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises `ProcessError`, in one line, if the address cannot be had.

    That is no wrong setting: somebody else has it now, and may let go of it.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        way_out = "; end what listens there, or choose another port (0 takes a free one)" if getattr(error, "errno", None) == errno.EADDRINUSE else ""
        raise ProcessError(f"cannot listen on {host}:{port}: {getattr(error, 'strerror', None) or error}{way_out}") from None
    listener.listen(2048)
    return listener


class _Server(uvicorn.Server):
    """Ends normally when it is told to stop. (The original raises the signal again, which would be an exit in disorder.)"""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)


def server_config(app: ASGIApp, access: Access, direct: Sequence[DirectRoute] = (), shapes: Mapping[str, Refused] | None = None) -> uvicorn.Config:
    """How a server of `app` behind its `Guard` runs, with a lane for the direct routes."""
    limits = replace(access.limits, max_connections=allow_descriptors(access.limits))
    door = Door(access)
    return uvicorn.Config(
        Guard(app, access, door, shapes),
        log_level="warning",
        access_log=False,
        http=protocol_under(limits, Lane(direct, door) if direct else None, shapes),
        ws="none",
        # Nothing here asks who a proxy says the client is, and anybody could say it.
        proxy_headers=False,
        timeout_keep_alive=limits.keep_alive_seconds,
        timeout_graceful_shutdown=DRAIN_SECONDS,
        server_header=False,
    )


async def serve_app(
    app: ASGIApp,
    access: Access,
    listener: socket.socket,
    *,
    port_file: Path | None = None,
    direct: Sequence[DirectRoute] = (),
    shapes: Mapping[str, Refused] | None = None,
) -> None:
    """Serve `app` behind a `Guard` until SIGTERM or SIGINT, then drain. `port_file` is written, whole, once connections are taken.

    Plain requests for `direct` routes do not pass through `app`; it must have them all the same, for requests that are not plain (`routed`).
    `shapes` says how refusals that are made before `app` is asked look on paths that have a shape of their own.
    """
    config = server_config(app, access, direct, shapes)
    host, port = listener.getsockname()[:2]
    log.info("listening on http://%s:%d", f"[{host}]" if ":" in host else host, port)
    if port_file is not None:
        temporary = port_file.with_name(f".{port_file.name}.{os.getpid()}")
        temporary.write_text(str(port))
        temporary.replace(port_file)
    await _Server(config).serve([listener])
