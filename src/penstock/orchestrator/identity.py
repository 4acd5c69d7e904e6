"""Which settings make a run the run it is. Resuming with others would give neither the old run nor a new one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from fnmatch import fnmatchcase
from typing import Any

from penstock.errors import ConfigError
from penstock.orchestrator.config import RunConfig

FREE_KEYS = (
    "run.updates",
    "run.dir",
    "run.spare_learner",
    "run.stall_seconds",
    "run.give_up_seconds",
    "envs.*.replicas",
    "envs.*.concurrency",
    "buffer.*",
    "weights.*",
    "inference.servers",
    "inference.threads",
    "inference.limits.*",
    "eval.*",
)
"""Keys that may change between two lives of a run: they say how fast, how long and how closely watched, not what."""


def check_same_run(before: RunConfig, now: RunConfig) -> None:
    """Raise `ConfigError` that names the first setting in which `now` is another run than `before`."""
    old, new = dict(_flat(asdict(before))), dict(_flat(asdict(now)))
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key) and not any(fnmatchcase(key, pattern) for pattern in FREE_KEYS):
            raise ConfigError(
                f"{key}: run {now.run.name} was started with {_show(old, key)}, {_show(new, key)} would make another run of it; "
                "choose another run.name, or start over with --fresh"
            )


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _show(values: Mapping[str, Any], key: str) -> str:
    return str(values[key]) if key in values else "nothing"
