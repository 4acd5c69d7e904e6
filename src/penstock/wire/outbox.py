"""What is written to several connections, written together."""

from __future__ import annotations

import asyncio


class Outbox:
    """Requests, or answers, that are written together, as soon as whoever is ready to run has run. Those of one connection stay in their order.

    A write wakes the other side up if it sleeps, and that costs more than the write. Those who are answered together mostly ask again together: then one of
    them wakes it, and the others find it awake.
    """

    __slots__ = ("_waiting", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._waiting: list[tuple[asyncio.Transport, bytes]] = []

    def put(self, transport: asyncio.Transport, data: bytes) -> None:
        """Have `data` written soon, unless the connection is given up meanwhile, or lost."""
        if not self._waiting:
            self.loop.call_soon(self.flush)
        self._waiting.append((transport, data))

    def flush(self) -> None:
        """Write it now: for whoever is about to write by itself, or to close a connection."""
        waiting, self._waiting = self._waiting, []
        for transport, data in waiting:
            if not transport.is_closing():
                transport.write(data)
