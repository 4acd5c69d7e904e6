"""What is ready and what came in, per environment, as running sums: a batch can be reported without looking at all that waits.

A *pool* is what the groups of an environment that are ready hold; *new* is what was accepted since the last batch was made.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

from penstock.types import ArrivedItem, GroupRecord, GroupState, Purpose, RolloutRecord, RolloutStatus

# Asked for with every rollout, and an enum takes its time to name a member.
_TRAIN, _READY, _TRUNCATED = Purpose.TRAIN, GroupState.READY, RolloutStatus.TRUNCATED


@dataclass(slots=True)
class Spread:
    """Mean and standard deviation of values that come one by one."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    """Sum of squared distances from the mean."""

    def add(self, value: float) -> None:
        """One value more."""
        self.count += 1
        distance = value - self.mean
        self.mean += distance / self.count
        self.squares += distance * (value - self.mean)

    @property
    def std(self) -> float:
        """Of the values as they are (ddof 0); 0 for none."""
        return math.sqrt(max(0.0, self.squares) / self.count) if self.count else 0.0


@dataclass(slots=True)
class New:
    """Usable rollouts for training that were accepted since the last batch; those that came too late for `max_lag` are left out."""

    rollouts: int = 0
    tokens: int = 0
    sampled_tokens: int = 0
    truncated: int = 0
    reward: Spread = field(default_factory=Spread)
    rewards: dict[str, Spread] = field(default_factory=dict)
    """By name."""

    def add(self, rollout: RolloutRecord) -> None:
        """One rollout more."""
        self.rollouts += 1
        self.tokens += rollout.tokens
        self.sampled_tokens += rollout.sampled_tokens
        self.truncated += rollout.status is _TRUNCATED
        if rollout.reward is not None:
            self.reward.add(rollout.reward)
        for name, value in rollout.rewards.items():
            self.rewards.setdefault(name, Spread()).add(value)

    def add_item(self, reward: float | None) -> None:
        """One item more: its tokens are not ours to count."""
        self.rollouts += 1
        if reward is not None:
            self.reward.add(reward)


@dataclass(slots=True)
class Pool:
    """What the ready groups of an environment hold."""

    groups: int = 0
    rollouts: int = 0
    tokens: int = 0
    """After prefix sharing."""
    by_version: Counter[int] = field(default_factory=Counter)
    """Sampled tokens, by the version that sampled them."""

    def add(self, group: GroupRecord, sign: int = 1) -> None:
        """One ready group more, or with `sign` -1 one less."""
        self.groups += sign
        self.rollouts += sign * group.usable
        self.tokens += sign * group.tokens
        self.add_versions(group, sign)

    def add_versions(self, group: GroupRecord, sign: int) -> None:
        """Count the sampled tokens of a group."""
        for version, tokens in group.version_tokens:
            self.by_version[version] += sign * tokens
            if not self.by_version[version]:
                del self.by_version[version]


class Pools:
    """Pools and what is new, by environment. The ledger tells it of every change."""

    def __init__(self) -> None:
        self.ready: dict[str, Pool] = {}
        self.new: dict[str, New] = {}

    def put(self, group: GroupRecord) -> None:
        """A group is in the state that its record says."""
        if _counts(group):
            self.ready.setdefault(group.environment, Pool()).add(group)

    def take(self, group: GroupRecord) -> None:
        """It no longer is."""
        if _counts(group):
            self.ready[group.environment].add(group, -1)

    def take_all(self, environment: str, groups: Sequence[GroupRecord]) -> None:
        """Groups of an environment that were ready for training no longer are."""
        pool = self.ready[environment]
        pool.groups -= len(groups)
        pool.rollouts -= sum([group.usable for group in groups])
        pool.tokens -= sum([group.tokens for group in groups])
        for group in groups:
            if group.version_tokens:
                pool.add_versions(group, -1)

    def accept(self, group: GroupRecord, rollout: RolloutRecord) -> None:
        """A rollout was stored for a group."""
        if group.purpose is _TRAIN and rollout.status.usable and not rollout.stale:
            self._new(group.environment).add(rollout)

    def accept_item(self, item: ArrivedItem) -> None:
        """An item was stored for a group, and has not failed."""
        self._new(item.environment).add_item(item.reward)

    def _new(self, environment: str) -> New:
        found = self.new.get(environment)
        if found is None:
            found = self.new[environment] = New()
        return found

    def batch_made(self) -> None:
        """From here on everything is new."""
        self.new.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentReport:
    """How an environment stood when a batch was made, and its part in it."""

    pool: Pool
    """What the batch was chosen from; what it takes included."""
    new: New
    frac_on_policy: float | None
    """Share of the pool's sampled tokens that the newest version sampled; None if there are none."""
    used_rollouts: int
    used_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """What a batch was made from."""

    run: str
    step: int
    """The update."""
    environments: Mapping[str, EnvironmentReport]


def batch_report(pools: Pools, *, run: str, step: int, chosen: Iterable[GroupRecord], removed: Iterable[GroupRecord], newest_version: int) -> BatchReport:
    """The report of a batch of the groups `chosen`, before any of them has left its pool. `removed` are ready groups that leave it unused."""
    ready = deepcopy(pools.ready)
    for group in removed:
        ready[group.environment].add(group, -1)
    used: dict[str, list[GroupRecord]] = {}
    for group in chosen:
        used.setdefault(group.environment, []).append(group)
    names = sorted({*ready, *pools.new, *used})
    return BatchReport(
        run=run,
        step=step,
        environments={name: _environment(ready.get(name, Pool()), pools.new.get(name, New()), used.get(name, []), newest_version) for name in names},
    )


def _environment(pool: Pool, new: New, used: list[GroupRecord], newest_version: int) -> EnvironmentReport:
    sampled = pool.by_version.total()
    return EnvironmentReport(
        pool=pool,
        new=deepcopy(new),
        frac_on_policy=pool.by_version[newest_version] / sampled if sampled else None,
        used_rollouts=sum(group.usable for group in used),
        used_tokens=sum(group.tokens for group in used),
    )


def _counts(group: GroupRecord) -> bool:
    return group.state is _READY and group.purpose is _TRAIN
