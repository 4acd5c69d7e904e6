"""Where batches of rollouts are read: small ones here, large ones in a process of their own (`buffer.intake_child`).

To read a rollout costs as much as to decide about it, and needs nothing that the buffer knows. So a large batch is read on another core while the event
loop goes on; what comes back is a record of each rollout, and the bytes never leave. Nothing depends on that process: it is started by the first large
batch, and until it is there, or whenever it is gone, fails or hangs, batches are read here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections import deque

from penstock.buffer.intake import Intake, rollout_intakes, with_payload
from penstock.buffer.intake_child import HEAD, LENGTH, Records, unpacked
from penstock.errors import InputError
from penstock.process.child import Child, start_with_socket
from penstock.wire import ContentType, split_items

log = logging.getLogger(__name__)

LARGE_BYTES = 32 << 10
"""Of a batch that is worth the way to another process: about 0.3 ms of reading."""
START_SECONDS = 60.0
PATIENCE_SECONDS = 15.0
"""It hangs if it says nothing for so long though it was asked: the largest batch takes it half a second."""
AGAIN_SECONDS = 5.0
"""Between the end of one process and the start of the next."""
_MODULE = "penstock.buffer.intake_child"


class IntakeDesk:
    """Reads batches for one event loop. To be closed."""

    def __init__(self, *, patience_seconds: float = PATIENCE_SECONDS, again_seconds: float = AGAIN_SECONDS) -> None:
        self._patience_seconds = patience_seconds
        self._again_seconds = again_seconds
        self._line: _Line | None = None
        """To the process, while there is one that can read."""
        self._life: asyncio.Task[None] | None = None
        self._not_before = 0.0
        self._may_start = _num_cores() > 1

    @property
    def process(self) -> int | None:
        """Number of the process that reads large batches now, if there is one."""
        return None if self._line is None else self._line.child.id.pid

    async def read(self, run: str, batch: bytes, form: ContentType) -> list[Intake | InputError]:
        """As `rollout_intakes` of what is in `batch`. Raises `MalformedError` if it is no batch."""
        bodies = split_items(batch, form)
        records = await self._read_apart(run, batch, form) if len(batch) >= LARGE_BYTES else None
        if records is None or len(records) != len(bodies):
            return rollout_intakes(run, bodies, form)
        return [
            rollout_intakes(run, (body,), form)[0] if record is None else with_payload(record, body, form) for record, body in zip(records, bodies, strict=True)
        ]

    async def close(self) -> None:
        """End the process, if there is one."""
        self._may_start = False
        if self._life is not None:
            self._life.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._life

    async def _read_apart(self, run: str, batch: bytes, form: ContentType) -> Records | None:
        if self._line is not None:
            return await self._line.ask(run, batch, form)
        is_over = self._life is None or self._life.done()
        if is_over and self._may_start and asyncio.get_running_loop().time() >= self._not_before:
            self._life = asyncio.get_running_loop().create_task(self._live())
        return None

    async def _live(self) -> None:
        """One process, from its start to its end."""
        try:
            line = await _started()
        except OSError as error:
            self._ended(f"cannot be started: {error}")
            return
        try:
            async with asyncio.timeout(START_SECONDS):
                await line.ready.wait()
            if not line.gone.is_set():
                self._line = line
                log.info("large batches are read by process %d", line.child.id.pid)
            self._ended(await line.end(self._patience_seconds))
        except TimeoutError:
            self._ended(f"was not ready after {START_SECONDS:.0f} s")
        finally:
            self._line = None
            line.close()
            line.child.kill()
            await line.child.wait()

    def _ended(self, why: str) -> None:
        self._not_before = asyncio.get_running_loop().time() + self._again_seconds
        log.warning("the process that reads large batches %s; meanwhile they are read here", why)


class _Line(asyncio.Protocol):
    """This end of the socket: asks, and hears answers in the order of the questions."""

    child: Child
    _transport: asyncio.Transport

    def __init__(self) -> None:
        self.ready = asyncio.Event()
        """It can be asked, or is gone."""
        self.gone = asyncio.Event()
        self._heard = bytearray()
        self._asked: deque[asyncio.Future[Records | None]] = deque()
        self._heard_at = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.set()
        self.ready.set()
        while self._asked:
            _resolve(self._asked.popleft(), None)

    def ask(self, run: str, batch: bytes, form: ContentType) -> asyncio.Future[Records | None]:
        """What the process says of a batch, or None if it ends before."""
        loop = asyncio.get_running_loop()
        place: asyncio.Future[Records | None] = loop.create_future()
        if self.gone.is_set():
            place.set_result(None)
            return place
        if not self._asked:
            self._heard_at = loop.time()
        self._asked.append(place)
        name = run.encode()
        self._transport.writelines((HEAD.pack(len(name), len(batch), form == "json"), name, batch))
        return place

    def data_received(self, data: bytes) -> None:
        self._heard += data
        while len(self._heard) >= LENGTH.size:
            end = LENGTH.size + LENGTH.unpack_from(self._heard)[0]
            if len(self._heard) < end:
                return
            said = bytes(self._heard[LENGTH.size : end])
            del self._heard[:end]
            self._hear(unpacked(said))

    def _hear(self, records: Records) -> None:
        if not self.ready.is_set():
            self.ready.set()
            return
        self._heard_at = asyncio.get_running_loop().time()
        _resolve(self._asked.popleft(), records)

    async def end(self, patience_seconds: float) -> str:
        """Wait until the process is gone, or says nothing for so long though it was asked; in a word, which."""
        while not self.gone.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience_seconds / 2):
                    await self.gone.wait()
            if self._asked and asyncio.get_running_loop().time() - self._heard_at > patience_seconds:
                return f"has said nothing for {patience_seconds:.0f} s"
        return "is gone"

    def close(self) -> None:
        """Ask no more; whoever still waits is told None."""
        self._transport.abort()


async def _started() -> _Line:
    """Raises `OSError` if it cannot be started."""
    child, near = await start_with_socket((sys.executable, "-P", "-m", _MODULE), log=None, environment={})
    _, line = await asyncio.get_running_loop().create_unix_connection(_Line, sock=near)
    line.child = child
    return line


def _resolve(place: asyncio.Future[Records | None], records: Records | None) -> None:
    # Whoever asked may have gone.
    if not place.done():
        place.set_result(records)


def _num_cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
