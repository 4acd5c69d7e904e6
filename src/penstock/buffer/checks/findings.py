"""How a promise is looked into."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from penstock.buffer.core import Buffer
from penstock.buffer.findings import Finding
from penstock.errors import PenstockError
from penstock.ledger import Ledger

Looked = tuple[str, list[str]]
"""What was looked at, with how many; and what is wrong, a sentence each."""


@dataclass(frozen=True, slots=True)
class Held:
    """One run as its store holds it, opened to look at."""

    buffer: Buffer
    run: str

    @property
    def ledger(self) -> Ledger:
        """The ledger of the run, as it was when the store was opened."""
        return self.buffer.ledger(self.run)


Check = Callable[[Held], Looked]
H = TypeVar("H", bound=Held)


def finding(promise: str, check: Callable[[H], Looked], held: H) -> Finding:
    """Look into a promise. Damage that does not even let us look is a finding too, and does not hide the others."""
    try:
        checked, broken = check(held)
    except PenstockError as error:
        checked, broken = f"{check.__name__}: could not be looked at", [str(error)]
    return Finding(promise=promise, checked=checked, broken=tuple(broken))
