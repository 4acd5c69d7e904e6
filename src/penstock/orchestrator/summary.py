"""`summary.json`: what came of a run, from its directory alone."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from penstock.buffer.core import Buffer
from penstock.buffer.serving import STORE_FILE
from penstock.buffer.store.sqlite import SqliteStore
from penstock.ledger import imbalance
from penstock.metrics import read_jsonl
from penstock.orchestrator.rundir import RunDir
from penstock.types import Purpose


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Held-out reward, mean over environments; None if nothing was evaluated."""

    greedy: float | None = None
    sampled: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MismatchSummary:
    """Agreement of sampler and learner about logprobs, over the tokens of all live updates. p999 is that of all of them together, at most 21 % too large."""

    p999: float = 0.0
    max: float = 0.0
    tokens: int = 0
    mixed_kv: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What came of a run."""

    eval_before: HeldOut
    eval_after: HeldOut
    updates: int
    wall_seconds: float
    cpu_seconds: float
    tokens_sampled: int
    """Sampled tokens of every stored rollout, failed and dropped ones included."""
    tokens_trained: int
    """Sampled tokens of the rollouts in applied updates."""
    mismatch: MismatchSummary
    ledger_imbalance: int
    restarts: int
    weights_digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFacts:
    """What the store of a run adds up to."""

    updates: int
    tokens_sampled: int
    tokens_trained: int
    ledger_imbalance: int
    weights_digest: str


def store_facts(run_dir: RunDir, run: str) -> StoreFacts:
    """Add up a store that nobody writes to."""
    store = SqliteStore(run_dir.buffer / STORE_FILE, read_only=True)
    try:
        ledger = Buffer(store, lambda: 0.0).ledger(run)
        applied = [outcome.update for outcome in ledger.outcomes.values() if outcome.kind == "applied"]
        plans = [store.plan(run, update) for update in applied]
        trained = [rollout for plan in plans if plan is not None for planned in plan.groups for rollout in store.rollouts(run, planned.id)]
        held_out = {group.id for group in store.scan_groups(run) if group.purpose is not Purpose.TRAIN}
        return StoreFacts(
            updates=ledger.next_update,
            tokens_sampled=sum(rollout.sampled_tokens for rollout in store.scan_rollouts(run) if rollout.group_id not in held_out),
            tokens_trained=sum(rollout.sampled_tokens for rollout in trained if rollout.status.usable and not rollout.stale),
            ledger_imbalance=imbalance(ledger),
            weights_digest=ledger.versions[ledger.newest_version].digest,
        )
    finally:
        store.close()


def mismatch_of(lines: Iterable[Mapping[str, Any]]) -> MismatchSummary:
    """Agreement over the lines of a run's metrics. An update that was computed twice because of a kill counts as it was the last time."""
    by_step: dict[int, Mapping[str, float]] = {line["step"]: line for line in lines if "mismatch/tokens" in line}
    values = by_step.values()
    return MismatchSummary(
        p999=_p999(values),
        max=max((found.get("mismatch/max", 0.0) for found in values), default=0.0),
        tokens=int(sum(found["mismatch/tokens"] for found in values)),
        mixed_kv=int(sum(found.get("mismatch/mixed_kv", 0.0) for found in values)),
    )


def _p999(values: Collection[Mapping[str, float]]) -> float:
    """Smallest bound that 99.9 % of all compared tokens keep, out of the histograms of single updates. Never above the largest difference there was."""
    prefix = "mismatch/histogram/"
    counts: Counter[float] = Counter()
    for found in values:
        counts.update({float(name.removeprefix(prefix)): int(count) for name, count in found.items() if name.startswith(prefix)})
    needed, seen = counts.total() * 0.999, 0
    for bound in sorted(counts):
        seen += counts[bound]
        if seen >= needed:
            return min(bound, max(found.get("mismatch/max", 0.0) for found in values))
    return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What a run has cost so far, over all its lives."""

    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    restarts: int = 0


def summarize(run_dir: RunDir, run: str, costs: Costs, before: HeldOut, after: HeldOut) -> Summary:
    """The summary of a run whose buffer has stopped."""
    facts = store_facts(run_dir, run)
    return Summary(
        eval_before=before,
        eval_after=after,
        updates=facts.updates,
        wall_seconds=round(costs.wall_seconds, 3),
        cpu_seconds=round(costs.cpu_seconds, 3),
        tokens_sampled=facts.tokens_sampled,
        tokens_trained=facts.tokens_trained,
        mismatch=mismatch_of(read_jsonl(run_dir.metrics)) if run_dir.metrics.exists() else MismatchSummary(),
        ledger_imbalance=facts.ledger_imbalance,
        restarts=costs.restarts,
        weights_digest=facts.weights_digest,
    )


def write_summary(path: Path, summary: Summary) -> None:
    """Write the file, whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(summary), indent=1) + b"\n")
    temporary.replace(path)


def read_summary(path: Path) -> Summary | None:
    """The summary of a finished run; None if there is none."""
    return msgspec.json.decode(path.read_bytes(), type=Summary) if path.exists() else None


def describe_summary(run: str, summary: Summary) -> str:
    """A summary in words."""
    before, after, agreement = summary.eval_before, summary.eval_after, summary.mismatch
    lines = [
        f"run {run}: {summary.updates} updates in {summary.wall_seconds:.0f} s ({summary.cpu_seconds:.0f} CPU s), {summary.restarts} restarts",
        f"held out   greedy {_number(before.greedy)} -> {_number(after.greedy)}, sampled {_number(before.sampled)} -> {_number(after.sampled)}",
        f"tokens     {summary.tokens_sampled} sampled, {summary.tokens_trained} trained",
        f"agreement  sampler and learner differ by at most {agreement.max:.1e} (p99.9 {agreement.p999:.1e}) on {agreement.tokens} tokens"
        + (f"; {agreement.mixed_kv} more with a mixed cache are left out" if agreement.mixed_kv else ", none left out"),
        f"ledger     {'balanced' if summary.ledger_imbalance == 0 else f'OFF BY {summary.ledger_imbalance}'}",
        f"weights    {summary.weights_digest}",
    ]
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
