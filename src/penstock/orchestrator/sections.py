"""Sections of a run's config that belong to the run as a whole. Those of a part stand beside the part."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from penstock.buffer.archive.config import ArchiveConfig
from penstock.buffer.size import check_max_bytes
from penstock.errors import ConfigError
from penstock.inference.limits import EngineLimits

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSection:
    """The run itself (`run`)."""

    name: str
    """Starting again with the same name resumes."""
    updates: int
    """Optimizer steps until the run is done. May be raised later."""
    dir: Path = Path("runs")
    """Where the run's directory is made."""
    seed: int = 0
    """Decides problems, sampling and shuffling."""
    spare_learner: bool = True
    """Keep a second learner process loaded and waiting, so that a killed one is replaced at once; costs its memory."""
    stall_seconds: float = 60.0
    """Without a new update for so long, the run says which part waits for what."""
    give_up_seconds: float = 900.0
    """Without a new update for so long, the run stops."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or self.name.endswith(".previous"):
            raise ConfigError(f"name must be 1 to 64 letters, digits, dots, dashes or underscores and not end in .previous, got {self.name!r}")
        if self.updates < 1:
            raise ConfigError(f"updates must be 1 or more, got {self.updates}")
        if self.seed < 0:
            raise ConfigError(f"seed must be 0 or more, got {self.seed}")
        if not 0 < self.stall_seconds <= self.give_up_seconds:
            raise ConfigError(f"stall_seconds must be above 0 and not above give_up_seconds, got {self.stall_seconds} and {self.give_up_seconds}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSection:
    """What is trained (`model`)."""

    path: Path
    """Hugging Face directory of a causal LM: `config.json`, safetensors, tokenizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferSection:
    """The buffer of a run (`buffer`)."""

    max_bytes: int | None = None
    """Size of the store above which writes are refused; null: the disk's."""
    capacity_rollouts: Mapping[str, int] = field(default_factory=dict)
    """Rollouts that may be ready at once, by environment; above it the oldest ready groups are dropped (`capacity`)."""
    archive: ArchiveConfig = field(default_factory=ArchiveConfig)
    """When groups that have ended move to Parquet files, and how long those are kept."""

    def __post_init__(self) -> None:
        check_max_bytes(self.max_bytes)
        for environment, rollouts in self.capacity_rollouts.items():
            if rollouts < 1:
                raise ConfigError(f"capacity_rollouts.{environment} must be 1 or more, got {rollouts}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshnessSection:
    """How old and how many the tokens under way may be (`freshness`)."""

    max_lag: int = 1
    """How many versions old a sampled token may be when it is trained on."""
    tokens_per_update: int | None = None
    """Tokens that one update trains on, about; credits are a multiple of it. null: the size of a batch, in tokens or in groups."""
    min_group_size: int = 2
    """Usable members that a group needs."""
    max_retries: int = 3
    """New tries at a slot after infrastructure failures or a lost worker."""
    max_reuse: int = 1
    """Updates that a group may take part in."""
    endangered: Literal["drop", "wait"] = "drop"
    """What a cut does about an unfinished group that the next version would make stale: go on and lose it, or wait for it."""

    def __post_init__(self) -> None:
        for name, least in (("max_lag", 0), ("tokens_per_update", 1), ("min_group_size", 1), ("max_retries", 0), ("max_reuse", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"{name} must be {least} or more, got {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSection:
    """What makes up one update (`batch`): a budget of tokens or a number of groups."""

    budget_tokens: int | None = None
    """Hard ceiling of tokens in an update, after prefix sharing; or else:"""
    groups_per_update: int | None = None
    """How many groups, exactly."""
    order: Literal["oldest", "newest"] = "oldest"
    """Which ready groups go first."""
    unallocated: Literal["proportional", "newest", "none"] = "proportional"
    """What happens to the share that no environment was given."""
    short: Literal["block", "spill"] = "block"
    """What happens when an environment with an unmet share has no ready group."""
    spill_after_seconds: float = 30.0
    tokens_per_row: int | None = None
    """Width of a packed row; null: as wide as the longest tree."""

    def __post_init__(self) -> None:
        if (self.budget_tokens is None) == (self.groups_per_update is None):
            raise ConfigError(f"one of budget_tokens and groups_per_update must be given, got {self.budget_tokens} and {self.groups_per_update}")
        for name in ("budget_tokens", "groups_per_update", "tokens_per_row"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be 1 or more, got {value}")
        if self.spill_after_seconds < 0:
            raise ConfigError(f"spill_after_seconds must be 0 or more, got {self.spill_after_seconds}")


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsSection:
    """What is kept of the weights (`weights`)."""

    checkpoint_every_updates: int = 20
    checkpoints_kept: int = 2
    """Newest checkpoints that are kept; the first one always is."""

    def __post_init__(self) -> None:
        for name in ("checkpoint_every_updates", "checkpoints_kept"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be 1 or more, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceSection:
    """The servers that sample (`inference`)."""

    engine: Literal["embedded"] = "embedded"
    servers: int = 1
    """How many processes."""
    threads: int = 1
    """Torch threads of each. One, if several processes share the cores."""
    on_swap: Literal["recompute", "keep"] = "recompute"
    """What happens to the caches of replies under way when weights change: computed anew, or kept and their tokens marked `mixed_kv`."""
    limits: EngineLimits = field(default_factory=EngineLimits)

    def __post_init__(self) -> None:
        for name in ("servers", "threads"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be 1 or more, got {getattr(self, name)}")
