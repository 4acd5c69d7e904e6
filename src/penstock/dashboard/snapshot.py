"""All that a view shows at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.dashboard.history import Replay
from penstock.dashboard.replies import ShownReply


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A process of the run."""

    name: str
    state: str
    restarts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """How a run stands, for people."""

    run: str
    phase: str
    elapsed_seconds: float
    updates: int
    """That the run is to have."""
    updates_done: int = 0
    rewards: tuple[float, ...] = ()
    """Mean reward of each trained update."""
    lags: tuple[float, ...] = ()
    """Mean lag of each trained update."""
    lag_max: int = 0
    """Largest lag of any trained token so far."""
    max_lag: int = 0
    """What it may be at most."""
    greedy: tuple[tuple[int, float], ...] = ()
    """Held-out reward at temperature 0, by updates done."""
    sampled: tuple[tuple[int, float], ...] = ()
    """Held-out reward of sampled replies, by updates done."""
    sampled_per_second: tuple[float, ...] = ()
    """Sampled tokens per second, one for each look."""
    trained_per_second: float = 0.0
    groups: Mapping[str, int] = field(default_factory=dict)
    """By state; dropped ones as `dropped(reason)`."""
    imbalance: int = 0
    term: int = 0
    replay: Replay | None = None
    mismatch_max: float = 0.0
    """Largest difference between a sampler's logprob and the learner's, in nats."""
    mismatch_tokens: int = 0
    parts: tuple[Part, ...] = ()
    reply: ShownReply | None = None
    events: tuple[str, ...] = ()
    """What has happened, oldest first."""
