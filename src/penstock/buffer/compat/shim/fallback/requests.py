"""A stand-in for the package `requests` where it is not installed: `get`, `post`, and what they return."""

from __future__ import annotations

import json as json_module
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from penstock.buffer.compat.shim.generator.sending import Answer, request

TIMEOUT_SECONDS = 600.0


class RequestException(OSError):
    """No answer, or one that says no."""


class Response:
    """An answer."""

    def __init__(self, answer: Answer) -> None:
        self.status_code = answer.status
        self.headers = dict(answer.headers)
        self.content = answer.body

    @property
    def ok(self) -> bool:
        """Whether it says yes."""
        return self.status_code < 400

    @property
    def text(self) -> str:
        """The body as text."""
        return self.content.decode(errors="replace")

    def json(self) -> Any:
        """The body, decoded."""
        return json_module.loads(self.content)

    def raise_for_status(self) -> None:
        """Raise `RequestException` if it says no."""
        if not self.ok:
            raise RequestException(f"status {self.status_code}: {self.text[:500]}")


def get(url: str, params: Mapping[str, Any] | None = None, *, headers: Mapping[str, str] | None = None, timeout: float | None = None) -> Response:
    """`GET url`."""
    return _asked("GET", f"{url}?{urlencode(params)}" if params else url, None, headers, timeout)


def post(url: str, *, json: Any = None, headers: Mapping[str, str] | None = None, timeout: float | None = None) -> Response:
    """`POST url` with a JSON body."""
    return _asked("POST", url, {} if json is None else json, headers, timeout)


def _asked(method: str, url: str, value: Any, headers: Mapping[str, str] | None, timeout: float | None) -> Response:
    try:
        return Response(request(method, url, value, headers=headers, timeout_seconds=timeout or TIMEOUT_SECONDS))
    except OSError as error:
        raise RequestException(str(error)) from error
