"""What a server and a generator's process say to each other over a pair of sockets: frames of JSON, each behind its length.

Standard output stays the generator's own. JSON, because a generator's data is JSON already; NaN and infinity are refused where they are written.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from typing import Any

_LENGTH = struct.Struct(">Q")
MAX_FRAME_BYTES = 1 << 32


class FrameError(Exception):
    """The other end is gone, or says what is no frame."""


def packed(value: Any) -> bytes:
    """One frame. Raises `ValueError` or `TypeError` for what is no JSON; numbers of numpy are numbers."""
    body = json.dumps(value, allow_nan=False, default=_plain).encode()
    return _LENGTH.pack(len(body)) + body


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no JSON")


class BlockingFrames:
    """The generator's end."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._file = connection.makefile("rb")

    def send(self, value: Any) -> None:
        """Say one thing. Raises as `packed` does, before anything is sent."""
        self._connection.sendall(packed(value))

    def receive(self) -> Any:
        """Hear one thing. Raises `EOFError` if nobody is there any more."""
        head = self._file.read(_LENGTH.size)
        if len(head) < _LENGTH.size:
            raise EOFError
        (length,) = _LENGTH.unpack(head)
        body = self._file.read(length)
        if len(body) < length:
            raise EOFError
        return json.loads(body)


class Frames:
    """The server's end. Made by `open_frames`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, value: Any) -> None:
        """Say one thing. Raises `FrameError` if nobody is there any more."""
        self._writer.write(packed(value))
        try:
            await self._writer.drain()
        except OSError as error:
            raise FrameError("the process is gone") from error

    async def receive(self) -> Any:
        """Hear one thing. Raises `FrameError` if nobody is there any more, or it makes no sense."""
        try:
            (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            if length > MAX_FRAME_BYTES:
                raise FrameError(f"the process says {length} bytes at once")
            return json.loads(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, OSError) as error:
            raise FrameError("the process is gone") from error
        except ValueError as error:
            raise FrameError("the process says what is no JSON") from error

    def close(self) -> None:
        """Say no more; the process ends when it sees this."""
        self._writer.close()


async def open_frames(connection: socket.socket) -> Frames:
    """This end of a pair, for an event loop."""
    return Frames(*await asyncio.open_unix_connection(sock=connection))
