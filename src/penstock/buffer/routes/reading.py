"""What a request says: its path, its query and its body, checked."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from starlette.requests import Request

from penstock.buffer.core import Buffer
from penstock.buffer.service import BufferService
from penstock.buffer.store import Store
from penstock.buffer.stored import StoredGroup, opened
from penstock.errors import InvalidError, MediaTypeError
from penstock.httpd.operations import Query
from penstock.types import GroupRecord, PlannedGroup
from penstock.wire import ContentType, check_id, read_body

T = TypeVar("T")

RUN = "/v1/runs/{run}"
"""Where everything about a run is."""
LONGEST_WAIT_SECONDS = 3600.0
LONGEST_LEASE_SECONDS = 24 * 3600.0
GROUPS_AT_ONCE = 16
"""Groups that are read without a look at whether somebody else waits."""


def run_of(request: Request) -> str:
    """The run in the path."""
    return check_id(request.path_params["run"], "run")


def id_of(request: Request, name: str) -> str:
    """Another id in the path."""
    return check_id(request.path_params[name], name)


def check_name(name: str, field: str) -> str:
    """An id that a client makes up and that stands inside paths later on."""
    if "/" in name:
        raise InvalidError(f"{field}: must not have a slash, got {name[:80]!r}")
    return check_id(name, field)


def number_of(request: Request, name: str) -> int:
    """A number in the path."""
    value = int(request.path_params[name])
    if value >= 2**53:
        raise InvalidError(f"{name}: must fit in 53 bits")
    return value


def query_number(request: Request, name: str, default: str = "0") -> int:
    """A number behind the question mark."""
    word = request.query_params.get(name, default)
    if not (word.isascii() and word.isdecimal() and len(word) <= 9):
        raise InvalidError(f"{name}: {word[:20]!r} is not a number of at most 9 digits")
    return int(word)


def check_query(request: Request, known: tuple[Query, ...]) -> None:
    """Raise `InvalidError` for a parameter that means nothing: it was meant to change something."""
    names = {query.name for query in known}
    unknown = [name for name in request.query_params if name not in names]
    if unknown:
        raise InvalidError(f"query: there is no parameter {unknown[0][:80]!r}; there are {', '.join(sorted(names))}")


async def body_of(request: Request, noun: type[T]) -> T:
    """The body, as the noun that it must be."""
    content_type(request, msgpack=False)
    return read_body(await request.body(), noun)


def content_type(request: Request, *, msgpack: bool = True) -> ContentType:
    """The form of the body. Raises `MediaTypeError` for one that is not read."""
    given = request.headers.get("content-type")
    return form_of(None if given is None else given.encode("latin1"), msgpack=msgpack)


def form_of(content_type: bytes | None, *, msgpack: bool = True) -> ContentType:
    """The form of a body, by its header. Raises `MediaTypeError` for one that is not read."""
    kind = (b"application/json" if content_type is None else content_type).decode("latin1").partition(";")[0].strip().lower()
    if kind == "application/json":
        return "json"
    if msgpack and kind in ("application/msgpack", "application/x-msgpack"):
        return "msgpack"
    raise MediaTypeError(f"content-type: {kind[:80]!r} is not read here; send application/json{' or application/msgpack' if msgpack else ''}")


def accepted(request: Request, *forms: ContentType) -> ContentType:
    """The form of the answer that the client asks for; the first unless it names another."""
    wanted = request.headers.get("accept", "")
    for form in forms:
        if f"application/{form}" in wanted or f"application/x-{form}" in wanted:
            return form
    return forms[0]


def check_wait(seconds: float) -> float:
    """A time to wait."""
    return check_seconds(seconds, "wait_seconds", LONGEST_WAIT_SECONDS, least=0.0)


def check_seconds(seconds: float, name: str, most: float, *, least: float = 0.1) -> float:
    """A length of time. Raises `InvalidError` if it is out of bounds."""
    if not (math.isfinite(seconds) and least <= seconds <= most):
        raise InvalidError(f"{name}: must be {least:g} to {most:g}, got {seconds}")
    return seconds


def check_count(count: int, name: str, most: int) -> int:
    """A number of things. Raises `InvalidError` if it is out of bounds."""
    if not 1 <= count <= most:
        raise InvalidError(f"{name}: must be 1 to {most}, got {count}")
    return count


async def check_run(service: BufferService, run: str) -> None:
    """Raise `UnknownError` unless there is such a run."""
    await service.looked(lambda buffer: _ledger(buffer, run))


def _ledger(buffer: Buffer, run: str) -> None:
    buffer.ledger(run)


async def stored_groups(service: BufferService, run: str, groups: Sequence[PlannedGroup], shape: Callable[[StoredGroup], T]) -> list[T]:
    """What `shape` makes of each of these groups, which must hold what was planned. Raises as `Buffer.fetch`.

    They are read and shaped beside the event loop, some at a time: a plan may have thousands, and their bytes may lie in the archive.
    """
    shaped: list[T] = []
    for start in range(0, len(groups), GROUPS_AT_ONCE):
        page = groups[start : start + GROUPS_AT_ONCE]
        records = await service.looked(partial(_records, run=run, groups=page))
        shaped += await asyncio.to_thread(_shaped, service.buffer.store, records, page, shape)
    return shaped


def _records(buffer: Buffer, run: str, groups: Sequence[PlannedGroup]) -> list[GroupRecord]:
    return [buffer.group(run, group.id) for group in groups]


def _shaped(store: Store, records: Sequence[GroupRecord], planned: Sequence[PlannedGroup], shape: Callable[[StoredGroup], T]) -> list[T]:
    return [shape(opened(store, record, group.digest)) for record, group in zip(records, planned, strict=True)]
