"""The process that reads large batches for a buffer (see `buffer.intake_desk`).

    python -m penstock.buffer.intake_child FD

On the socket FD it hears batches and says what became of them, in their order:

    heard    HEAD: length of the run's name, length of the batch, whether it is JSON; then both
    said     LENGTH, and so many bytes of msgpack: for each rollout its record, or nil for one that the buffer is to look at itself

Before the first it says an empty list, once it has all that it needs. It ends when nobody is at the other end any more.
"""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Sequence

import msgspec

from penstock.buffer.intake import rollout_intakes
from penstock.errors import InputError
from penstock.process.garbage import collect_seldom
from penstock.process.leash import hold
from penstock.types import RolloutRecord
from penstock.wire import ContentType, split_items

HEAD = struct.Struct(">HQ?")
LENGTH = struct.Struct(">Q")

Records = Sequence[RolloutRecord | None]
"""Of each rollout of a batch; None for one that the buffer is to look at itself."""


def main(words: Sequence[str]) -> None:
    """See the module's docstring."""
    hold()
    connection = socket.socket(fileno=int(words[0]))
    heard = connection.makefile("rb")
    collect_seldom()
    _say(connection, [])
    while len(head := heard.read(HEAD.size)) == HEAD.size:
        run_bytes, batch_bytes, is_json = HEAD.unpack(head)
        run, batch = heard.read(run_bytes), heard.read(batch_bytes)
        if len(batch) < batch_bytes:
            return
        _say(connection, records_in(run.decode(), batch, "json" if is_json else "msgpack"))


def records_in(run: str, batch: bytes, form: ContentType) -> Records:
    """What is read in a batch."""
    return [None if isinstance(found, InputError) else found[0] for found in rollout_intakes(run, split_items(batch, form), form)]


def packed(records: Records) -> bytes:
    """Records on their way to the buffer."""
    return msgspec.msgpack.encode(records)


def unpacked(said: bytes) -> Records:
    """The inverse of `packed`."""
    return _decoder.decode(said)


_decoder = msgspec.msgpack.Decoder(list[RolloutRecord | None])


def _say(connection: socket.socket, records: Records) -> None:
    said = packed(records)
    connection.sendall(LENGTH.pack(len(said)) + said)


if __name__ == "__main__":
    main(sys.argv[1:])
