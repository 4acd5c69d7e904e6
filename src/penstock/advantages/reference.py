"""The table of estimators, made from what they declare."""

from __future__ import annotations

import inspect

from penstock.advantages.declaration import Declaration
from penstock.advantages.registry import ESTIMATORS, declared


def table() -> str:
    """Markdown: for each built-in estimator what a row is, which columns it reads and which options it has."""
    lines = ["| name | a row is | columns | takes if known | options |", "|---|---|---|---|---|"]
    lines += [_line(declared(name)) for name in ESTIMATORS]
    return "\n".join(lines) + "\n"


def formula(name: str) -> str:
    """The equations of a built-in estimator, as its docstring has them: the first indented block."""
    lines = inspect.cleandoc(ESTIMATORS[name].__doc__ or "").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("    "))
    stop = next(number for number, line in enumerate(lines[start:], start) if not line)
    return "\n".join(lines[start:stop])


def _line(found: Declaration) -> str:
    options = ", ".join(f"`{name}={default!r}`" for name, default in found.options.items())
    columns, optional = (", ".join(f"`{name}`" for name in names) for names in (found.columns, found.optional_columns))
    return f"| [`{found.name}`](#{found.name}) | {found.row.value} | {columns} | {optional} | {options} |"
