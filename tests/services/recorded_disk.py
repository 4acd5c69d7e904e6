"""What a buffer's process does to its store's files, write by write and sync by sync, and the files that a loss of power at any moment may leave.

SQLite asks the system through tables of functions. In the child some of them are replaced by ones that do the same and note it; so what is looked at
is the very process that answers clients. The notes tell which bytes were synced when. Of the others a disk may keep all, none, parts, or any of them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

RECORDED_DISK = """
import _sqlite3, ctypes, json, os

P, I, L = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
notes = os.open(os.environ["PENSTOCK_TEST_NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
names, kept = {}, []
METHODS = 19 * ctypes.sizeof(P)

class Vfs(ctypes.Structure):
    _fields_ = [("version", I), ("file_bytes", I), ("longest", I), ("next", P), ("name", P), ("data", P), ("open", P), ("delete", P)]

def note(name, kind, start=0, data=b""):
    os.write(notes, (json.dumps([kind, name, start, data.hex()]) + "\\n").encode())

def noted(address, arguments, words):
    original = ctypes.CFUNCTYPE(I, P, *arguments)(address)
    def call(file, *given):
        status = original(file, *given)
        if status == 0:
            note(names[file], *words(*given))
        return status
    kept.append(ctypes.CFUNCTYPE(I, P, *arguments)(call))
    return ctypes.cast(kept[-1], P).value

tables = {}

def table_of(address):
    if address not in tables:
        copied = ctypes.create_string_buffer(ctypes.string_at(address, METHODS), METHODS)
        slots = (P * 19).from_buffer(copied)
        slots[3] = noted(slots[3], (P, I, L), lambda data, size, start: ("write", start, ctypes.string_at(data, size)))
        slots[4] = noted(slots[4], (L,), lambda size: ("truncate", size))
        slots[5] = noted(slots[5], (I,), lambda flags: ("sync",))
        tables[address] = (ctypes.addressof(copied), copied)
    return tables[address][0]

def name_of(path):
    return os.path.basename(ctypes.string_at(path)).decode()

def opening(vfs, name, file, flags, told):
    status = original_open(vfs, name, file, flags, told)
    if status == 0 and name:
        methods = ctypes.cast(file, ctypes.POINTER(P))
        methods[0] = table_of(methods[0])
        names[file] = name_of(name)
    return status

def deleting(vfs, name, is_synced):
    status = original_delete(vfs, name, is_synced)
    if status == 0:
        note(name_of(name), "delete")
    return status

library = ctypes.CDLL(getattr(_sqlite3, "__file__", None))
library.sqlite3_vfs_find.restype = ctypes.POINTER(Vfs)
vfs = library.sqlite3_vfs_find(None).contents
OPEN = ctypes.CFUNCTYPE(I, P, P, P, I, P)
DELETE = ctypes.CFUNCTYPE(I, P, P, I)
original_open, original_delete = OPEN(vfs.open), DELETE(vfs.delete)
kept += [OPEN(opening), DELETE(deleting)]
vfs.open, vfs.delete = (ctypes.cast(function, P).value for function in kept[-2:])
"""
"""No bug: notes what SQLite does to the files of the store."""

UNSYNCED = """
import sqlite3
from penstock.buffer.store import sqlite as store

def open_for_writing(path, max_bytes, opened=store.open_for_writing):
    connection = opened(path, max_bytes)
    connection.execute("PRAGMA synchronous = OFF")
    return connection

store.open_for_writing = open_for_writing
"""
"""Answers when the system has the bytes, and the disk may not."""


@dataclass
class _File:
    content: bytearray = field(default_factory=bytearray)
    """What the disk has for sure."""
    doubtful: list[tuple[int, bytes | None]] = field(default_factory=list)
    """Since the last sync: where bytes were written, or (None) to which length the file was cut."""


def losses(notes: Path, seed: int) -> Iterator[tuple[int, dict[str, bytes]]]:
    """Power is lost before and after every sync, and somewhere between: how much of the notes had happened, and what each file holds then."""
    fates = random.Random(seed)
    files: dict[str, _File] = {}
    happened = 0
    for line in notes.read_bytes().splitlines(keepends=True):
        kind, name, start, data = json.loads(line)
        file = files.setdefault(name, _File())
        if kind == "delete":
            del files[name]
        elif kind == "sync":
            yield happened, _left(files, fates)
            _apply(file.content, file.doubtful)
            file.doubtful = []
        else:
            file.doubtful.append((start, None if kind == "truncate" else bytes.fromhex(data)))
        happened += len(line)
        if kind == "sync" or fates.random() < 0.1:
            yield happened, _left(files, fates)


def _left(files: dict[str, _File], fates: random.Random) -> dict[str, bytes]:
    """The files as one loss may leave them: what is in doubt is lost, kept, torn, or kept and lost one by one."""
    left = {}
    for name, file in sorted(files.items()):
        fate = fates.choice(("lost", "kept", "torn", "reordered"))
        intact = fates.randrange(len(file.doubtful) + 1) if fate == "torn" else len(file.doubtful)
        kept = [] if fate == "lost" else file.doubtful[:intact] + [_part(change, fates) for change in file.doubtful[intact : intact + 1]]
        if fate == "reordered":
            kept = [_part(change, fates) for change in file.doubtful if fates.random() < 0.7]
        content = bytearray(file.content)
        _apply(content, kept)
        left[name] = bytes(content)
    return left


def _part(change: tuple[int, bytes | None], fates: random.Random) -> tuple[int, bytes | None]:
    start, data = change
    return start, data if data is None else data[: fates.choice((len(data), fates.randrange(len(data) + 1)))]


def _apply(content: bytearray, changes: list[tuple[int, bytes | None]]) -> None:
    for start, data in changes:
        if data is None:
            del content[start:]
        else:
            content += bytes(max(0, start - len(content)))
            content[start : start + len(data)] = data
