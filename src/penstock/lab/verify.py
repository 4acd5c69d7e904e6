"""`penstock verify`: reconciles what writers were told, what the store holds and what checkpoints consumed. Each finding names a promise."""

from __future__ import annotations

from pathlib import Path

from penstock.errors import ConflictError
from penstock.lab.archive import opened
from penstock.lab.findings import Check, Finding, finding
from penstock.lab.lineage import fresh, kept, named, planned, servable, spent, used_once, whole
from penstock.lab.records import acknowledged, conserved, stored, undamaged

__all__ = ["CHECKS", "Finding", "verify"]

CHECKS: tuple[tuple[str, Check], ...] = (
    ("D1", acknowledged),
    ("D3", stored),
    ("D5", conserved),
    ("D5", spent),
    ("E1", planned),
    ("E2", used_once),
    ("E3", whole),
    ("F1", fresh),
    ("F2", named),
    ("F4", servable),
    ("C1", kept),
    ("D3", undamaged),
)
"""What is looked into, under the promise that it would break."""


def verify(run_dir: Path) -> tuple[Finding, ...]:
    """Check a run directory. Nothing in it is changed. Raises `ConflictError` while the run is alive: what moves cannot be counted twice."""
    with opened(run_dir) as archive:
        if archive.is_written:
            raise ConflictError(f"run {archive.run} is running; verify it when it has ended (`penstock stop {run_dir}` ends it)")
        return tuple(finding(promise, check, archive) for promise, check in CHECKS)
