"""Errors as clients of OpenAI expect them."""

from __future__ import annotations

from starlette.responses import Response

from penstock.errors import BadRequestError, InfraError, InputError, InvalidError, LimitError, PenstockError, StoreError
from penstock.httpd import reply

TOLD = (InputError, InfraError, StoreError)
"""What a client is told in that shape; the rest is our own mistake."""


def error_fields(error: PenstockError, request_id: str) -> dict[str, object]:
    """The `error` object."""
    kind = "rate_limit_error" if isinstance(error, LimitError) else "invalid_request_error" if isinstance(error, InputError) else "server_error"
    field = error.field if isinstance(error, BadRequestError) else None
    return {"message": str(error), "type": kind, "param": field, "code": error.code, "request_id": request_id}


def openai_error(error: PenstockError, request_id: str) -> Response:
    """An error as a reply. What is nobody's fault may be tried again: 503."""
    status = error.http_status if isinstance(error, InputError) else 503
    headers = {"Retry-After": str(max(1, int(error.retry_after_seconds)))} if isinstance(error, LimitError) else {}
    return reply({"error": error_fields(error, request_id)}, 400 if status == InvalidError.http_status else status, headers)
