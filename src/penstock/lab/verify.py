"""`penstock verify`: reconciles what writers were told, what the store holds and what checkpoints consumed. Each finding names a promise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from penstock.buffer.checks import Finding, Looked, check_run, check_store, finding
from penstock.buffer.serving import STORE_FILE
from penstock.errors import ConflictError, UnknownError
from penstock.lab.archive import Archive, opened
from penstock.lab.lineage import kept, servable
from penstock.lab.records import acknowledged
from penstock.lab.sources import UrlSource

__all__ = ["RUN_CHECKS", "Finding", "verify", "verify_buffer", "verify_url"]

RUN_CHECKS: tuple[tuple[str, Callable[[Archive], Looked]], ...] = (("D1", acknowledged), ("F4", servable), ("C1", kept))
"""What is looked into besides the buffer itself, under the promise that it would break."""


def verify(run_dir: Path) -> tuple[Finding, ...]:
    """Check a run directory. Nothing in it is changed. Raises `ConflictError` while the run is alive: what moves cannot be counted twice."""
    with opened(run_dir) as archive:
        if archive.is_written:
            raise ConflictError(f"run {archive.run} is running; verify it when it has ended (`penstock stop {run_dir}` ends it)")
        around = tuple(finding(promise, check, archive) for promise, check in RUN_CHECKS)
        # The buffer last: by then all of it was read, and what was found damaged on the way is told.
        return (*around, *check_run(archive, run_dir / "buffer"))


def verify_buffer(directory: Path) -> dict[str, tuple[Finding, ...]]:
    """Check the directory of a buffer, run by run. It may be alive: a copy of its store, as it is at one moment, is what is looked at."""
    path = directory / STORE_FILE
    if not path.is_file():
        raise UnknownError(f"{directory} is neither the directory of a run nor that of a buffer: it has no {STORE_FILE}")
    return check_store(path)


def verify_url(url: str, *, token: str | None = None) -> dict[str, tuple[Finding, ...]]:
    """Have a buffer that is being served check itself, run by run."""

    source = UrlSource(url, token=token)
    return {name: source.findings(name) for name in source.runs()}
