"""HTTP for generators, with the standard library alone: one request, and an item that is sent to the buffer until it is there."""

from __future__ import annotations

import base64
import json
import logging
import os
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

log = logging.getLogger(__name__)

TOKEN_VARIABLE = "PENSTOCK_TOKEN"
"""What the buffer wants to be told, if it wants anything."""
GIVE_UP_SECONDS = 300.0
"""A buffer that is away so long does not come back by itself."""
PAUSES_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Between attempts; the last one is repeated."""


class BufferAwayError(RuntimeError):
    """The buffer could not be reached for too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a server said, whatever its status."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body, decoded."""
        return json.loads(self.body)


def request(method: str, url: str, value: Any = None, *, headers: Mapping[str, str] | None = None, timeout_seconds: float = 600.0) -> Answer:
    """One request with a JSON body. Name and password in the URL are sent as others send them. Raises `OSError` if there is no answer."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https"):
        raise ValueError(f"a URL starts with http:// or https://, got {url!r}")
    user, is_there, place = parts.netloc.rpartition("@")
    if is_there:
        url = parts._replace(netloc=place).geturl()
        name, _, password = user.partition(":")
        pair = f"{unquote(name)}:{unquote(password)}".encode()
        headers = {"Authorization": f"Basic {base64.b64encode(pair).decode()}", **(headers or {})}
    data = None if value is None else json.dumps(value, allow_nan=False).encode()
    asked = urllib.request.Request(url, data, {"Content-Type": "application/json", **(headers or {})}, method=method)
    try:
        with _opener(url).open(asked, timeout=timeout_seconds) as answer:
            return Answer(status=answer.status, headers=dict(answer.headers), body=answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return Answer(status=error.code, headers=dict(error.headers), body=error.read())


def send_item(buffer_url: str, data: Any) -> bool:
    """Write an item, or a list of them, to the buffer; whether it was taken.

    Sending again is safe, because an item counts once by its uid: what fails on the way is repeated, and what the buffer has no room for waits. What it
    refuses is told in the log and not repeated. Raises `BufferAwayError` if nobody takes it within `GIVE_UP_SECONDS`.
    """
    url = buffer_url if "/buffer/write" in buffer_url else buffer_url.rstrip("/") + "/buffer/write"
    token = os.environ.get(TOKEN_VARIABLE)
    headers = {"Authorization": f"Bearer {token}"} if token and urlsplit(url).username is None else {}
    deadline, attempt = time.monotonic() + GIVE_UP_SECONDS, 0
    while True:
        pause_seconds = PAUSES_SECONDS[min(attempt, len(PAUSES_SECONDS) - 1)]
        attempt += 1
        try:
            answer = request("POST", url, data, headers=headers, timeout_seconds=90.0)
            if answer.status < 300:
                return True
            if answer.status < 500 and answer.status != 429:
                log.error("the buffer refuses an item: %s %s", answer.status, answer.body[:500].decode(errors="replace"))
                return False
            trouble = f"status {answer.status}"
            pause_seconds = max(pause_seconds, _seconds(answer.headers.get("Retry-After")))
        except OSError as error:
            trouble = str(error) or type(error).__name__
        if time.monotonic() + pause_seconds > deadline:
            raise BufferAwayError(f"the buffer has not taken an item for {GIVE_UP_SECONDS:g} s: {trouble}")
        if attempt == 1:
            log.warning("the buffer does not take an item, it is sent again: %s", trouble)
        time.sleep(pause_seconds)


def _opener(url: str) -> urllib.request.OpenerDirector:
    # A proxy of the environment is not asked for what runs on this machine.
    is_near = urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")
    return urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if is_near else []))


def _seconds(text: str | None) -> float:
    return min(float(text), 60.0) if text is not None and text.isdecimal() else 0.0
