"""Settings of an inference server."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from penstock.errors import ConfigError
from penstock.httpd import Access
from penstock.inference.limits import EngineLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceConfig:
    """One server."""

    model: Path
    """Hugging Face directory: `config.json`, safetensors, tokenizer."""
    weights_dir: Path | None = None
    """Where weights lie as `<digest>.safetensors`; without it, other weights are refused."""
    policy: str = "policy"
    """Name under which the model samples."""
    version: int = 0
    """Version of the weights to start with."""
    digest: str = ""
    """Digest of the weights to start with, from `weights_dir`; empty: those of the model directory."""
    buffer_url: str = ""
    """Buffer to ask for the newest version, at the start and from then on; empty: wait to be told."""
    run: str = ""
    """Run whose weights are served; goes with `buffer_url`."""
    on_swap: Literal["recompute", "keep"] = "recompute"
    """What happens to the caches of replies under way when weights change: computed anew, or kept and their tokens marked `mixed_kv`."""
    access: Access = field(default_factory=Access)
    port: int = 8000
    """0: any free one."""
    port_file: Path | None = None
    """Gets the port once connections are taken."""
    threads: int = 1
    """Threads of torch. One, if several processes share the cores."""
    limits: EngineLimits = field(default_factory=EngineLimits)

    def __post_init__(self) -> None:
        if self.version < 0:
            raise ConfigError(f"inference.version must be 0 or more, got {self.version}")
        if self.digest and self.weights_dir is None:
            raise ConfigError("inference.digest names weights, but there is no inference.weights_dir to find them in")
        if self.buffer_url and (not self.run or self.weights_dir is None):
            raise ConfigError("inference.buffer_url needs inference.run and inference.weights_dir: whose weights, and where they lie")
        if self.threads < 1:
            raise ConfigError(f"inference.threads must be 1 or more, got {self.threads}")
        if not self.policy:
            raise ConfigError("inference.policy must have a name")
