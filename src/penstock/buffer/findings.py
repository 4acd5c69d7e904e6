"""What came of looking into promises, as it is told to clients. Apart from the checks themselves, which need a store."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One promise that was looked into."""

    promise: str
    checked: str
    """What was looked at, with how many."""
    broken: tuple[str, ...] = ()
    """What is wrong, a sentence each; empty if nothing is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """All that was looked into of a run."""

    findings: tuple[Finding, ...]
