"""Ports that nobody listens on."""

from __future__ import annotations

import random
import socket

from penstock.errors import ConfigError

_FIRST, _LAST = 15_000, 31_999
"""Below the range from which systems take the near ends of outgoing connections: a port that a server comes back to must not be lost to one of those."""


def free_ports(count: int, host: str = "127.0.0.1") -> tuple[int, ...]:
    """So many different ports that could be bound a moment ago. Raises `ConfigError` if there are none."""
    found: list[int] = []
    for port in random.sample(range(_FIRST, _LAST + 1), _LAST + 1 - _FIRST):
        if len(found) == count:
            break
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((host, port))
            except OSError:
                continue
        found.append(port)
    if len(found) < count:
        raise ConfigError(f"no {count} free ports between {_FIRST} and {_LAST} on {host}")
    return tuple(found)
