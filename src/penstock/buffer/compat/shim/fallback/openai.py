"""A stand-in for the package `openai` where it is not installed: `OpenAI(...).chat.completions.create(...)` and `.completions.create(...)`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from penstock.buffer.compat.shim.generator.sending import request

TIMEOUT_SECONDS = 600.0


class OpenAIError(Exception):
    """Whatever went wrong."""


class APIConnectionError(OpenAIError):
    """The server gave no answer."""


class APIStatusError(OpenAIError):
    """The server's answer was no."""

    def __init__(self, message: str, status_code: int) -> None:
        super().__init__(message)
        self.status_code = status_code


class Reply(SimpleNamespace):
    """An object of a reply, its fields as attributes. A field that is not there is None."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None

    def model_dump(self) -> dict[str, Any]:
        """The fields, as they came."""
        return {name: _dumped(value) for name, value in vars(self).items()}


class OpenAI:
    """Asks an OpenAI-compatible server."""

    def __init__(self, *, api_key: str | None = None, base_url: str | None = None, timeout: float = TIMEOUT_SECONDS, **_: Any) -> None:
        self.api_key = api_key or os.environ.get("OPENAI_API_KEY", "")
        self.base_url = (base_url or os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com/v1").rstrip("/")
        self.timeout = timeout
        self.completions = _Completions(self, "/completions")
        self.chat = SimpleNamespace(completions=_Completions(self, "/chat/completions"))


class _Completions:
    def __init__(self, client: OpenAI, path: str) -> None:
        self._client = client
        self._path = path

    def create(
        self, *, extra_body: Mapping[str, Any] | None = None, extra_headers: Mapping[str, str] | None = None, timeout: float | None = None, **fields: Any
    ) -> Reply:
        """One whole reply."""
        if fields.get("stream"):
            raise OpenAIError("this stand-in does not stream; install the package openai")
        headers = {"Authorization": f"Bearer {self._client.api_key}", **(extra_headers or {})}
        try:
            answer = request(
                "POST", self._client.base_url + self._path, {**fields, **(extra_body or {})}, headers=headers, timeout_seconds=timeout or self._client.timeout
            )
        except OSError as error:
            raise APIConnectionError(str(error)) from error
        if answer.status >= 300:
            raise APIStatusError(f"status {answer.status}: {answer.body[:500].decode(errors='replace')}", answer.status)
        shape = _shaped(answer.json())
        assert isinstance(shape, Reply)
        return shape


def _shaped(value: Any) -> Any:
    if isinstance(value, dict):
        return Reply(**{str(name): _shaped(one) for name, one in value.items()})
    return [_shaped(one) for one in value] if isinstance(value, list) else value


def _dumped(value: Any) -> Any:
    if isinstance(value, Reply):
        return value.model_dump()
    return [_dumped(one) for one in value] if isinstance(value, list) else value
