"""Settings of the buffer service."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from penstock.buffer.archive.config import ArchiveConfig
from penstock.buffer.compat.config import CompatConfig
from penstock.buffer.size import check_max_bytes
from penstock.errors import ConfigError
from penstock.httpd import Access


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferConfig:
    """How a buffer is served."""

    directory: Path
    """Where the store is; made if it does not exist."""
    port: int = 8889
    """0 takes a free one."""
    access: Access = field(default_factory=Access)
    port_file: Path | None = None
    """Written once connections are taken."""
    max_bytes: int | None = None
    """Size of the store above which writes are refused with 507."""
    max_waiting: int = 1024
    """Requests that may wait for a batch or a slot at once."""
    expire_seconds: float = 0.5
    """How often deadlines are looked at."""
    archive: ArchiveConfig = field(default_factory=ArchiveConfig)
    archive_directory: Path | None = None
    """Where archive files go; `archive` beside the store if not given."""
    metrics: Path | None = None
    """File for the metrics of each batch; `metrics/<run>.jsonl` beside the store if not given."""

    compat: CompatConfig = field(default_factory=CompatConfig)
    """How items of the compatible routes become groups."""
    generators: tuple[Path, ...] = ()
    """Folders with generators, beside `generator/` under the working directory."""
    data_root: Path = field(default_factory=Path.cwd)
    """Where the input files of generators must lie."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port must be 0 to 65535, got {self.port}")
        check_max_bytes(self.max_bytes)
