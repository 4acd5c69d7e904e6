"""What a learner tells about itself, as metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from penstock.learner.gate import BIN_NAMES
from penstock.learner.step import StepResult
from penstock.metrics import Last, Max, Mean, Metrics, Record, Sum, named
from penstock.types import Group, Plan


class Reporter:
    """Collects the facts of one update and emits them together, before the outcome is recorded.

    An update that is computed twice because of a kill in between is emitted twice; readers take the last line of a step.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._pending: list[Record] = []

    def waited(self, phase: str, seconds: float) -> None:
        """Seconds that were spent in a phase."""
        self._pending.append(Sum(f"time/{phase}", seconds))

    def batch(self, plan: Plan, groups: Sequence[Group]) -> None:
        """What is in the batch."""
        rollouts: Counter[str] = Counter()
        for group in groups:
            rollouts[group.environment] += len(group.rollouts)
            self._pending.append(Mean(named("reward/<env>/mean", env=group.environment), [rollout.reward or 0.0 for rollout in group.rollouts]))
        for environment, count in rollouts.items():
            self._pending.append(Sum(named("batches/<env>/rollouts_used", env=environment), count))

    def step(self, plan: Plan, result: StepResult, seconds: float) -> None:
        """What came of the arithmetic."""
        stats, found = result.stats, result.mismatch
        if stats is not None and result.kind == "applied":
            self._pending += [
                Mean("learner/loss", stats.loss),
                Mean("learner/entropy", stats.entropy),
                Mean("learner/grad_norm", stats.grad_norm),
                Mean("learner/clip_frac", stats.clip_frac),
                Mean("learner/tokens_per_second", stats.tokens / max(seconds, 1e-9)),
                Sum("learner/tokens", stats.tokens),
                Last("learner/learning_rate", stats.lr),
                Mean("off_policy/lag/mean", stats.lag_mean),
                Max("off_policy/lag/max", stats.lag_max),
            ]
        if found.tokens:
            self._pending += [Max("mismatch/p999", found.p999), Max("mismatch/max", found.max)]
            bins = zip(BIN_NAMES, found.histogram, strict=True)
            self._pending += [Sum(named("mismatch/histogram/<bound>", bound=bound), count) for bound, count in bins if count]
        self._pending += [Sum("mismatch/tokens", found.tokens), Sum("mismatch/mixed_kv", found.mixed_kv)]
        self._pending += [Sum("time/step", seconds), Sum("learner/skipped", result.kind == "skipped")]
        self._metrics.emit(plan.update, *self._pending)
        self._pending.clear()

    def term(self, term: int, first_update: int, next_update: int) -> None:
        """A life has begun."""
        self._metrics.emit(next_update, Last("learner/term", term), Last("learner/replaying", next_update - first_update))

    def replayed(self, update: int, *, equal: bool) -> None:
        """A replay has ended."""
        self._pending.clear()
        self._metrics.emit(update, Last("learner/replaying", 0), Last("learner/replay_equal", float(equal)))
