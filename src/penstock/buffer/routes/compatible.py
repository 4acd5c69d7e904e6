"""The compatible routes as the document describes them. `compat/routes.py` answers them, in front of the app."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.buffer.service import BufferService
from penstock.httpd import Scope
from penstock.httpd.operations import Body, Operation, Query
from penstock.types import Json
from penstock.wire.refusals import ErrorFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class CompatibleItem:
    """One item. A list of them is written, too."""

    uid: str | int
    """Only one item per uid counts."""
    instance_id: str | int
    """Items of the same instance form a group."""
    reward: float | bool | None
    """Null or below 0: the item failed."""
    messages: list[Mapping[str, Json]]
    extra_info: Mapping[str, Json] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompatibleRead:
    """What is asked for; nothing: everything that is ready."""

    batch_size: int | str | None = None
    read_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRollout:
    """Which generator is meant, and what it is told."""

    task_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompatibleReply:
    """The shape of every answer."""

    success: bool
    """Whether there is anything."""
    message: str
    data: Mapping[str, Json] | None
    """`data`, a list of items, and `meta_info`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompatibleRefusal:
    """A refusal in the same shape."""

    success: bool
    message: str
    data: None
    error: ErrorFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class CompatibleStats:
    """How full the buffer is."""

    current_size: int
    max_size: int
    total_written: int
    total_read: int
    last_read_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A sentence."""

    message: str


def _operation(method: str, path: str, needs: Scope, summary: str, **facts: Any) -> Operation[BufferService]:
    return Operation(method=method, path=path, call=None, needs=needs, summary=summary, refusal=CompatibleRefusal, **facts)  # type: ignore[arg-type]


def _read(path: str, summary: str) -> Operation[BufferService]:
    return _operation(
        "POST",
        path,
        Scope.CONSUME,
        summary,
        text="`batch_size` n asks for the fewest whole groups that reach n items, oldest first; absent or -1 for everything that is ready. `read_id` asks"
        " for an earlier read once more. The id of this one stands in `meta_info` and in the header `X-Read-Id`.",
        body=Body(noun=CompatibleRead, loose=True, required=False),
        answer=Body(noun=CompatibleReply),
        refuses=(404, 409, 410),
    )


OPERATIONS: tuple[Operation[BufferService], ...] = (
    _operation("GET", "/", Scope.VIEW, "The compatible service is there.", answer=Body(noun=Said)),
    _operation(
        "POST",
        "/buffer/write",
        Scope.PRODUCE,
        "Write one item, or a list of them.",
        text="Further keys are kept. The same uid counts once.",
        body=Body(noun=CompatibleItem, loose=True),
        answer=Body(noun=CompatibleReply),
        refuses=(404, 409),
    ),
    _read("/get_rollout_data", "Read groups that are ready, and spend them."),
    _read("/buffer/read", "The same under its older name."),
    _operation(
        "GET",
        "/buffer/peek",
        Scope.VIEW,
        "Look at what a read would give.",
        answer=Body(noun=CompatibleReply),
        query=(Query(name="batch_size", text="Items to look at.", kind="integer"),),
        refuses=(404, 409, 410),
    ),
    _operation("GET", "/buffer/stats", Scope.VIEW, "How full the buffer is.", answer=Body(noun=CompatibleStats, several=True)),
    _operation(
        "POST",
        "/start_rollout",
        Scope.ADMIN,
        "Start the generator of a task type.",
        text="`task_type` names one that `GET /generators` shows, never a file or a module. The other keys go to the generator.",
        body=Body(noun=StartRollout, loose=True),
        answer=Body(noun=Said),
        refuses=(404, 409),
    ),
)
