"""What came of looking into a promise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.errors import PenstockError
from penstock.lab.archive import Archive

Looked = tuple[str, list[str]]
"""What was looked at, with how many; and what is wrong, a sentence each."""
Check = Callable[[Archive], Looked]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One promise that was looked into."""

    promise: str
    checked: str
    """What was looked at, with how many."""
    broken: tuple[str, ...] = ()
    """What is wrong, a sentence each; empty if nothing is."""


def finding(promise: str, check: Check, archive: Archive) -> Finding:
    """Look into a promise. Damage that does not even let us look is a finding too, and does not hide the others."""
    try:
        checked, broken = check(archive)
    except PenstockError as error:
        checked, broken = f"{check.__name__}: could not be looked at", [str(error)]
    return Finding(promise=promise, checked=checked, broken=tuple(broken))
