"""What a learner tells about itself, as metrics."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from penstock.learner.gate import BIN_NAMES
from penstock.learner.selection import Selection, Trained
from penstock.learner.stats import TokenStats
from penstock.learner.step import StepResult
from penstock.metrics import Last, Max, Mean, Metrics, Min, Record, Sum, named
from penstock.trace import facts
from penstock.types import Group, Plan


def _token_records(prefix: str, stats: TokenStats, **labels: str) -> Iterator[Record]:
    """Statistics of tokens under names that begin alike. What is not finite (a ratio that overflowed) cannot be told."""
    values: list[tuple[type[Record], str, float | None]] = [
        (Mean, "entropy", stats.entropy),
        (Mean, "clip_frac", stats.clip_frac),
        (Mean, "ratio_mean", stats.ratio_mean),
        (Min, "ratio_min", stats.ratio_min),
        (Max, "ratio_max", stats.ratio_max),
        (Mean, "kl_k1", stats.kl_k1),
        (Mean, "kl_k2", stats.kl_k2),
        (Mean, "kl_k3", stats.kl_k3),
        (Mean, "kl_reference", stats.kl_reference),
        (Mean, "effective_sample_size", stats.effective_sample_size),
    ]
    for record, name, value in values:
        if value is not None and math.isfinite(value):
            yield record(named(f"{prefix}/{name}", **labels), value)
    for bound, share in stats.clip_fracs.items():
        yield Mean(named(f"{prefix}/clipped/<bound>", bound=bound, **labels), share)


class Reporter:
    """Collects the facts of one update and emits them together, before the outcome is recorded.

    An update that is computed twice because of a kill in between is emitted twice; readers take the last line of a step.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._pending: list[Record] = []
        self._injected: Mapping[str, int] = {}

    def waited(self, phase: str, seconds: float) -> None:
        """Seconds that were spent in a phase."""
        self._pending.append(Sum(f"time/{phase}", seconds))

    def batch(self, groups: Sequence[Group], selection: Selection, trained: Trained) -> None:
        """What is in the batch, what filters took out of it, and what credit made of the rest."""
        for group in groups:
            env, lengths_G = group.environment, [facts(rollout).sampled_tokens for rollout in group.rollouts]
            self._pending += [
                Mean(named("reward/<env>/mean", env=env), [rollout.reward or 0.0 for rollout in group.rollouts]),
                Mean(named("batches/<env>/length", env=env), lengths_G),
                Mean(named("batches/<env>/longest", env=env), max(lengths_G)),
            ]
            for rollout, length in zip(group.rollouts, lengths_G, strict=True):
                if (name := selection.refused.get(rollout.rollout_uid)) is not None:
                    self._pending.append(Sum(named("filtered/<env>/<filter>/rollouts", env=env, filter=name), 1))
                    self._pending.append(Mean(named("filtered/<env>/<filter>/length", env=env, filter=name), length))

        self._injected = trained.injected_tokens
        self._pending += [Sum(named("thinking/<env>/steps", env=env), count) for env, count in trained.thinking_steps.items()]
        self._pending += [
            Sum(named("thinking/<env>/lacking/<reason>", env=env, reason=reason), count) for (env, reason), count in trained.thinking_lacking.items()
        ]

    def step(self, plan: Plan, result: StepResult, seconds: float) -> None:
        """What came of the arithmetic."""
        stats, found = result.stats, result.mismatch
        if stats is not None and result.kind == "applied":
            self._pending += [
                Mean("learner/loss", stats.loss),
                Mean("learner/grad_norm", stats.grad_norm),
                Mean("learner/tokens_per_second", stats.tokens / max(seconds, 1e-9)),
                Sum("learner/tokens", stats.tokens),
                Last("learner/learning_rate", stats.lr),
                Mean("off_policy/lag/mean", stats.lag_mean),
                Max("off_policy/lag/max", stats.lag_max),
                *_token_records("learner", stats),
            ]
            if self._injected:
                self._pending.append(Sum("learner/injected_tokens", sum(self._injected.values())))
                self._pending += [Sum(named("trained/<env>/injected_tokens", env=env), count) for env, count in self._injected.items()]
            for environment, own in stats.environments.items():
                self._pending += [Sum(named("trained/<env>/tokens", env=environment), own.tokens), *_token_records("trained/<env>", own, env=environment)]
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
