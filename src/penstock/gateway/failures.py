"""Errors as clients of OpenAI expect them."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from penstock.errors import BadRequestError, InfraError, InputError, InvalidError, LimitError, PenstockError, StoreError
from penstock.httpd import DirectReply

TOLD = (InputError, InfraError, StoreError)
"""What a client is told in that shape; the rest is our own mistake."""


def error_fields(error: PenstockError, request_id: str) -> dict[str, object]:
    """The `error` object."""
    kind = "rate_limit_error" if isinstance(error, LimitError) else "invalid_request_error" if isinstance(error, InputError) else "server_error"
    field = error.field if isinstance(error, BadRequestError) else None
    return {"message": str(error), "type": kind, "param": field, "code": error.code, "request_id": request_id}


def openai_refusal(error: PenstockError, request_id: str) -> DirectReply:
    """An error as a reply. What is nobody's fault may be tried again: 503."""
    status = error.http_status if isinstance(error, InputError) else 503
    headers = ((b"retry-after", b"%d" % max(1, int(error.retry_after_seconds))),) if isinstance(error, LimitError) else ()
    body = msgspec.json.encode({"error": error_fields(error, request_id)})
    return DirectReply(body, 400 if status == InvalidError.http_status else status, headers=headers)


def openai_error(error: PenstockError, request_id: str) -> Response:
    """The same for ASGI."""
    refused = openai_refusal(error, request_id)
    return Response(refused.body, refused.status, {name.decode(): value.decode() for name, value in refused.headers}, "application/json")
