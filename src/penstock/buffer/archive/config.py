"""Settings of the archive."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveConfig:
    """When ended groups move to Parquet files, and how long those are kept (`buffer.archive`)."""

    enabled: bool = True
    """Without pyarrow nothing is archived either, and the log says so."""
    after_seconds: float = 60.0
    """A group stays in the hot store for so long after it has ended."""
    rollouts_per_file: int = 2048
    """A file is written once so many rollouts wait for it,"""
    most_wait_seconds: float = 900.0
    """or once one has waited for so long."""
    every_seconds: float = 5.0
    """How often to look."""
    keep_seconds: float | None = None
    """Files whose groups all ended longer ago are deleted; null: never. What a kept checkpoint may need is never deleted, and the first one is kept."""
    keep_bytes: int | None = None
    """When the files of a run are bigger than this together, the oldest are deleted, under the same rule; null: never."""

    def __post_init__(self) -> None:
        for name, least in (("after_seconds", 0.0), ("most_wait_seconds", 0.0), ("keep_seconds", 0.0), ("keep_bytes", 0), ("rollouts_per_file", 1)):
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise ConfigError(f"{name} must be {least:g} or more, got {value}")
        if not self.every_seconds > 0:
            raise ConfigError(f"every_seconds must be above 0, got {self.every_seconds}")
