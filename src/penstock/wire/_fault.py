"""How a wrong value is reported from deep inside a noun: each level that it passes adds where it was."""

from __future__ import annotations

from penstock.errors import InvalidError


class Fault(ValueError):
    """A value that a field may not have. `path` grows from the inside out. Never leaves this package."""

    def __init__(self, message: str, *path: str) -> None:
        super().__init__(message)
        self.message = message
        self.path = list(path)

    def at(self, step: str) -> Fault:
        """The same fault, seen from one level further out."""
        self.path.insert(0, step)
        return self

    def as_error(self, root: str) -> InvalidError:
        """The sentence that a client reads."""
        return InvalidError(f"{root}{''.join(self.path)} {self.message}")
