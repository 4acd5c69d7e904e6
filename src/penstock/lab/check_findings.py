"""What a check says, and how examples are shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Status = Literal["ok", "failed", "note"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckFinding:
    """What one check says."""

    check: str
    """Its name."""
    status: Status
    """`note`: how it is, where nothing was promised."""
    says: str
    example: tuple[str, ...] = ()
    """Lines that show the smallest batch on which it fails."""


def shown(columns: Mapping[str, Sequence[Any]]) -> tuple[str, ...]:
    """Columns as a table, one line per row.

    >>> shown({"rewards": [1.0, 0.0], "found": [0.5, -0.5]})
    ('row  rewards  found', '0    1        0.5', '1    0        -0.5')
    """
    num_rows = max((len(values) for values in columns.values()), default=0)
    table = [["row", *columns]]
    table += [[str(row), *(_word(values[row]) if row < len(values) else "" for values in columns.values())] for row in range(num_rows)]
    widths = [max(len(line[place]) for line in table) for place in range(len(table[0]))]
    return tuple("  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip() for line in table)


def _word(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
