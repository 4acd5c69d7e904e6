"""A started process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from penstock.process.child import start_with_socket


def num_open() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_a_child_is_told_its_end_of_a_pair_of_sockets() -> None:
    program = "import socket, sys; socket.socket(fileno=int(sys.argv[1])).sendall(b'here')"
    child, near = await start_with_socket((sys.executable, "-c", program), log=None, environment={})
    with near:
        near.setblocking(True)
        assert near.recv(4) == b"here"
    assert await child.wait() == 0


async def test_a_command_that_cannot_be_started_leaves_nothing_open(tmp_path: Path) -> None:
    before = num_open()
    with pytest.raises(OSError, match="No such file") as refused:
        await start_with_socket((str(tmp_path / "missing"),), log=None, environment={})
    # While the error is held, so is everything that nobody has closed.
    assert num_open() == before, refused
