"""How big a store may be."""

from __future__ import annotations

from penstock.errors import ConfigError

LEAST_STORE_BYTES = 1 << 20
"""A smaller store would be full with its tables."""


def check_max_bytes(max_bytes: int | None) -> None:
    """Raise `ConfigError` for a store that could hold nothing."""
    if max_bytes is not None and max_bytes < LEAST_STORE_BYTES:
        raise ConfigError(f"max_bytes must be {LEAST_STORE_BYTES} or more, got {max_bytes}")
