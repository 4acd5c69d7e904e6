"""Known bugs for a real buffer's process: each breaks one promise there, so that the trial which looks after the promise can be seen to fail.

A bug is text that the child's interpreter runs before anything else. Nothing in the package knows of it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.services.buffers import Process

EARLY_ANSWERS = """
import time
from penstock.buffer import core
from penstock.buffer.store import _writer

def given(self, records, given=core.Buffer._given):
    given(self, records)
    return core._DONE

def slowly(self, batch, commit=_writer.Writer._commit):
    time.sleep(0.3)
    return commit(self, batch)

core.Buffer._given = given
_writer.Writer._commit = slowly
"""
"""Answers before what was decided is on disk."""

FORGOTTEN_UIDS = """
from itertools import count
from penstock.buffer.compat import service
from penstock.types.frozen import changed

numbers = count()

def read_items(body, task_type, read=service.read_items):
    return [changed(item, uid=f"{item.uid}~{next(numbers)}") for item in read(body, task_type)]

service.read_items = read_items
"""
"""Takes an item that it has for another one."""

MIXED_INSTANCES = """
from penstock.buffer.compat import service
from penstock.types.frozen import changed

def next_one(instance):
    name, _, number = instance.rpartition("-")
    return f"{name}-{int(number) + 1}"

def read_items(body, task_type, read=service.read_items):
    return [changed(item, problem_id=next_one(item.problem_id)) if item.uid.endswith(":1") else item for item in read(body, task_type)]

service.read_items = read_items
"""
"""Puts the second item of an instance, `<name>-<number>`, into the group of the next."""

FORGOTTEN_READS = """
from penstock.buffer import core
from penstock.types import SpentGroups

def given(self, records, given=core.Buffer._given):
    return given(self, [record for record in records if not isinstance(record, SpentGroups)])

core.Buffer._given = given
"""
"""Has not written down which groups a read took."""

FORGOTTEN_LEASES = """
from penstock.ledger import leases

find, take = leases.find_lease, leases.take_lease

def take_lease(ledger, past, lease, consumer, request, now):
    leases.find_lease = lambda ledger, past, lease: None
    try:
        return take(ledger, past, lease, consumer, request, now)
    finally:
        leases.find_lease = find

from penstock import ledger
ledger.take_lease = take_lease
"""
"""Gives other groups to a lease that is asked for again, and the lease of one to another."""

NAN_IS_A_NUMBER = """
from penstock.buffer.compat import intake

intake.reward_of = lambda value: 1.0
"""
"""Takes every reward."""

SURPRISED = """
from penstock.buffer.compat import routes

routes._batch_size = int
"""
"""Has not thought of numbers that are none."""

SULKS = """
import time
from penstock.buffer.compat import service
from penstock.errors import InputError

def read_items(body, task_type, read=service.read_items):
    try:
        return read(body, task_type)
    except InputError:
        read_items.until = time.monotonic() + 1.5
        raise
    finally:
        time.sleep(max(0.0, getattr(read_items, "until", 0.0) - time.monotonic()) if b"good" in body else 0.0)

service.read_items = read_items
"""
"""Has no time for anybody after bad input."""

SULKS_ON_NATIVE_ROUTES = """
import time
from penstock.httpd.direct import DirectRoute

sulking = []

def begin(self, request, begin=DirectRoute.begin):
    if b"NaN" in request.body:
        sulking.append(1.5)
    elif sulking:
        time.sleep(sulking.pop())
    return begin(self, request)

DirectRoute.begin = begin
"""
"""The same on the native routes."""

ONE_AT_A_TIME = """
import asyncio
from penstock.httpd.guard import Guard
from penstock.httpd.limits import LimitedProtocol, Phase

there = []

def connection_made(self, transport, made=LimitedProtocol.connection_made):
    there.append(self)
    made(self, transport)

async def call(self, scope, receive, send, call=Guard.__call__):
    if any(other._phase is Phase.BODY for other in there):
        await asyncio.sleep(1.2)
    await call(self, scope, receive, send)

LimitedProtocol.connection_made = connection_made
Guard.__call__ = call
"""
"""Lets those wait who have sent everything until others have."""

UNCHECKED_BYTES = """
from penstock.buffer.store import _items

class Anything:
    def __ne__(self, other):
        return False

_items.digest = lambda body: Anything()
"""
"""Serves stored bytes without looking whether they are still what was stored."""

FAILING_DISK = """
import os, pathlib, signal

place = pathlib.Path(os.environ["PENSTOCK_TEST_DISK"])

def fail(number, frame):
    logs = [int(fd.name) for fd in pathlib.Path("/proc/self/fd").iterdir() if os.path.realpath(fd).endswith("store.sqlite-wal")]
    target = os.open(place.read_text(), os.O_RDWR)
    os.dup2(target, min(logs), inheritable=False)
    os.close(target)
    place.unlink()

signal.signal(signal.SIGUSR1, fail)
"""
"""No bug of ours: on SIGUSR1 something else lies behind the store's log, and the kernel refuses what is asked of it."""


@contextlib.contextmanager
def running(directory: Path, monkeypatch: pytest.MonkeyPatch, *bugs: str, arguments: tuple[str, ...] = ("--group-size", "2")) -> Iterator[Process]:
    """A buffer with these bugs."""
    if bugs:
        (directory / "patch").mkdir()
        (directory / "patch" / "sitecustomize.py").write_text("\n".join(bugs))
        monkeypatch.setenv("PYTHONPATH", str(directory / "patch"), prepend=os.pathsep)
    process = Process(directory, *arguments)
    try:
        yield process
    finally:
        process.kill()
