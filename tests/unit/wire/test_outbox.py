"""What is put into an outbox leaves in its order, and not before whoever is ready to run has run."""

from __future__ import annotations

import asyncio

from penstock.wire.outbox import Outbox


class Written(asyncio.Transport):
    """Notes what is written to it."""

    def __init__(self, log: list[bytes]) -> None:
        super().__init__()
        self.log, self.is_closed = log, False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.log.append(bytes(data))

    def is_closing(self) -> bool:
        return self.is_closed


async def test_what_is_put_in_together_leaves_together_in_its_order() -> None:
    log: list[bytes] = []
    outbox, one, two = Outbox(asyncio.get_running_loop()), Written(log), Written(log)
    for transport, data in ((one, b"a"), (two, b"b"), (one, b"c")):
        outbox.put(transport, data)
    assert log == []
    await asyncio.sleep(0)
    assert log == [b"a", b"b", b"c"]
    outbox.put(two, b"d")
    await asyncio.sleep(0)
    assert log == [b"a", b"b", b"c", b"d"]


async def test_whoever_closes_a_connection_has_it_written_first() -> None:
    log: list[bytes] = []
    outbox, transport = Outbox(asyncio.get_running_loop()), Written(log)
    outbox.put(transport, b"last words")
    outbox.flush()
    assert log == [b"last words"]
    await asyncio.sleep(0)
    assert log == [b"last words"]


async def test_nothing_is_written_to_a_connection_that_is_gone() -> None:
    log: list[bytes] = []
    outbox, gone, here = Outbox(asyncio.get_running_loop()), Written(log), Written(log)
    outbox.put(gone, b"to nobody")
    outbox.put(here, b"to somebody")
    gone.is_closed = True
    await asyncio.sleep(0)
    assert log == [b"to somebody"]
