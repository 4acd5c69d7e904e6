"""The token that this process sends to servers of penstock when it is told no other: one for all of them, from the environment."""

from __future__ import annotations

import os

TOKEN_VARIABLE = "PENSTOCK_TOKEN"
"""Servers take it with all scopes; clients send it."""


def own_token(given: str | None = None) -> str | None:
    """`given`, or what the environment has; None if nobody has one."""
    return given or os.environ.get(TOKEN_VARIABLE, "").strip() or None


def authorization(given: str | None = None) -> dict[str, str]:
    """Headers that carry the token; none without one."""
    token = own_token(given)
    return {"Authorization": f"Bearer {token}"} if token else {}
