"""The shape of every refusal of a server, as its clients read it, too."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorFacts:
    """Why a request was refused."""

    code: str
    """A stable word for machines."""
    message: str
    """A sentence for people: names the field, the value and the way out."""
    request_id: str
    """Under which the server's log has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorReply:
    """The shape of every refusal."""

    error: ErrorFacts
