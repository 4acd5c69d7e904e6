"""What a worker tells about its episodes: numbers as metrics, a line a second; failures as sentences in the log."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict

from penstock.metrics import Last, Mean, Metrics, Record, Sum, named
from penstock.rollout.writing import Fate
from penstock.types import Rollout, RolloutStatus

log = logging.getLogger(__name__)


class Reporter:
    """Collects between two emissions. The step of an emission is the newest version that sampled: so many updates were applied."""

    def __init__(self, metrics: Metrics | None, environment: str) -> None:
        self._metrics = metrics
        self._environment = environment
        self._newest_version = 0
        self.memory_mb: int | None = None
        """That the worker holds; None if nobody has looked."""
        self._clear()

    def episode(self, rollout: Rollout) -> None:
        """One has ended."""
        self._episodes += 1
        self._infra_errors += rollout.status is RolloutStatus.INFRA_ERROR
        self._truncated += rollout.status is RolloutStatus.TRUNCATED
        runs = [run for segment in rollout.trace.segments for run in segment.versions]
        self._newest_version = max([self._newest_version, *(run.version for run in runs)])
        self._tokens += sum(run.count for run in runs)
        self._turns.append(sum(mark.inference is not None for mark in rollout.trace.marks))
        if rollout.reward is not None:
            self._rewards.append(rollout.reward)
        if rollout.failure is not None:
            self._failures[str(rollout.metadata.get("error"))] += 1
            self._last_failure = f"{rollout.rollout_uid}: {rollout.failure}"
        for cause, seconds in rollout.metadata.get("seconds", {}).items():
            self.waited(cause, seconds)

    def written(self, fates: list[Fate]) -> None:
        """What became of rollouts at the buffer."""
        self._fates.update(fates)

    def waited(self, cause: str, seconds: float) -> None:
        """An episode or a loop of the worker had to wait. Waits of episodes overlap, so there may be many seconds of them in one."""
        self._waits[cause] += seconds

    def emit(self, in_flight: int) -> None:
        """Tell, and start anew."""
        if self._failures:
            kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(self._failures.items()))
            log.warning("%d of %d episodes failed (%s); the last one: %s", self._failures.total(), self._episodes, kinds, self._last_failure)
        lost = {fate: count for fate, count in sorted(self._fates.items()) if fate != "accepted"}
        if lost:
            log.info("not to be trained on: %s", ", ".join(f"{count} {fate}" for fate, count in lost.items()))
        if self._metrics is not None:
            self._metrics.emit(self._newest_version, *self._records(in_flight))
        self._clear()

    def _records(self, in_flight: int) -> list[Record]:
        env = self._environment
        return [
            Last(named("rollout/<env>/in_flight", env=env), in_flight),
            *([] if self.memory_mb is None else [Last(named("rollout/<env>/memory_mb", env=env), self.memory_mb)]),
            Sum(named("rollout/<env>/episodes", env=env), self._episodes),
            Sum(named("rollout/<env>/infra_errors", env=env), self._infra_errors),
            Sum(named("rollout/<env>/truncated", env=env), self._truncated),
            Sum(named("rollout/<env>/tokens", env=env), self._tokens),
            Mean(named("rollout/<env>/reward", env=env), self._rewards),
            Mean(named("rollout/<env>/turns", env=env), self._turns),
            *(Sum(named("rollout/<env>/errors/<kind>", env=env, kind=kind), count) for kind, count in self._failures.items()),
            *(Sum(named("rollout/<env>/written/<fate>", env=env, fate=fate), count) for fate, count in self._fates.items()),
            *(Sum(named("rollout/<env>/wait/<cause>", env=env, cause=cause), seconds) for cause, seconds in self._waits.items()),
        ]

    def _clear(self) -> None:
        self._episodes = self._infra_errors = self._truncated = self._tokens = 0
        self._rewards: list[float] = []
        self._turns: list[int] = []
        self._failures: Counter[str] = Counter()
        self._last_failure = ""
        self._fates: Counter[Fate] = Counter()
        self._waits: defaultdict[str, float] = defaultdict(float)
