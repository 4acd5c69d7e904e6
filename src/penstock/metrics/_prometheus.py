"""The text that a `/metrics` route answers with."""

from __future__ import annotations

import re
from collections.abc import Mapping

from penstock.metrics._catalogue import find
from penstock.metrics._records import Last

_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9]+")


def render_prometheus(values: Mapping[str, float], *, labels: Mapping[str, str] | None = None) -> str:
    """Metrics by name, in Prometheus' text format. Placeholders of the catalogue become labels; `labels` are added to every line.

    >>> print(render_prometheus({"ledger/ready": 3}), end="")
    # HELP penstock_ledger Groups of all environments in a state.
    # TYPE penstock_ledger gauge
    penstock_ledger{state="ready"} 3.0
    """
    families: dict[str, list[str]] = {}
    for name, value in values.items():
        metric, placeholders = find(name)
        (number,) = Last(name, value).numbers()
        family = "penstock_" + _NOT_IN_A_NAME.sub("_", re.sub(r"<\w+>", "", metric.pattern)).strip("_")
        inside = ",".join(f'{label}="{_escape(text)}"' for label, text in {**(labels or {}), **placeholders}.items())
        lines = families.setdefault(family, [f"# HELP {family} {metric.meaning}", f"# TYPE {family} gauge"])
        lines.append(f"{family}{{{inside}}} {number!r}" if inside else f"{family} {number!r}")
    return "".join(f"{line}\n" for lines in families.values() for line in lines)


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
