"""Replies as bytes, and errors in one shape: `{"error": {"code", "message", "request_id"}}`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response

from penstock.errors import LimitError, MethodError, PenstockError, UnauthorizedError


def reply(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON reply of plain values or dataclasses."""
    return Response(msgspec.json.encode(value), status, dict(headers or {}), "application/json")


def msgpack_reply(body: bytes) -> Response:
    """A reply that is msgpack already."""
    return Response(body, 200, media_type="application/msgpack")


def error_body(code: str, message: str, request_id: str) -> dict[str, Any]:
    """The shape of every error on native routes."""
    return {"error": {"code": code, "message": message, "request_id": request_id}}


class InternalError(PenstockError):
    """What is told about a failure that nobody foresaw: nothing but where to find it."""

    code = "internal"

    def __init__(self) -> None:
        super().__init__("this is our mistake; the log has it under the request id")


def error_headers(error: PenstockError) -> dict[str, str]:
    """What an error says beside its body: when to come back, which methods there are, what kind of token is asked for."""
    if isinstance(error, LimitError):
        return {"Retry-After": str(math.ceil(error.retry_after_seconds))}
    if isinstance(error, MethodError):
        return {"Allow": ", ".join(error.allowed)}
    if isinstance(error, UnauthorizedError):
        return {"WWW-Authenticate": "Bearer"}
    return {}
