"""Addresses of servers, as people write them."""

from __future__ import annotations

from penstock.errors import ConfigError


def server_root(key: str, url: str) -> str:
    """The address of a server with OpenAI's API, without the `/v1` that clients of that API have at its end. Raises `ConfigError` if it is none.

    >>> server_root("--engine", "http://127.0.0.1:8000/v1/")
    'http://127.0.0.1:8000'
    """
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"{key}: {url!r} is not the URL of a server: it must begin with http:// or https://")
    return url.rstrip("/").removesuffix("/v1")
