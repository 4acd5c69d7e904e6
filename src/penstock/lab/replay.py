"""`penstock replay`: executes every recorded plan again, in one process, from the archive alone, and compares the weights bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from penstock.batching import pack
from penstock.errors import ReplayError
from penstock.lab.archive import Archive, opened
from penstock.learner.checkpoints import read_checkpoint
from penstock.learner.config import LearnerConfig
from penstock.learner.credit import AlgorithmConfig, credit
from penstock.learner.step import Learner
from penstock.models import load_model, weights_digest
from penstock.types import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What a replay came to."""

    first_update: int
    updates: int
    """Updates that were executed, skipped ones included."""
    digest: str
    """Of the final weights: the run's own."""


def replay(
    run_dir: Path,
    model: Path,
    algorithm: AlgorithmConfig,
    learner_config: LearnerConfig,
    *,
    tokens_per_row: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Replayed:
    """Replay a run from its first kept checkpoint. Raises `ReplayError` at the first update that gives other weights than were recorded."""
    with opened(run_dir) as archive:
        first = min(archive.ledger.checkpoints, default=None)
        if first is None:
            raise ReplayError(f"{run_dir} has no checkpoint to start from")
        checkpoint = read_checkpoint(run_dir / "checkpoints", first, run=archive.run, digest=archive.ledger.checkpoints[first].digest)
        learner = Learner(load_model(model), learner_config, algorithm.loss, max_lag=archive.ledger.laws.max_lag)
        learner.restore(checkpoint.state)
        outcomes = [archive.ledger.outcomes[update] for update in range(first, archive.ledger.next_update)]
        for done, outcome in enumerate(outcomes):
            progress(done, len(outcomes))
            _execute(archive, learner, outcome, algorithm, tokens_per_row)
        progress(len(outcomes), len(outcomes))
        return Replayed(first_update=first, updates=len(outcomes), digest=weights_digest(learner.weights))


def _execute(archive: Archive, learner: Learner, outcome: Outcome, algorithm: AlgorithmConfig, tokens_per_row: int | None) -> None:
    plan = archive.plan(outcome.update)
    groups = archive.fetch(plan)
    if outcome.kind == "skipped" or outcome.version is None:
        return
    result = learner.step(pack(credit(groups, plan, algorithm), tokens_per_row=tokens_per_row), newest_version=plan.newest_version, gated=False)
    if result.kind == "skipped":
        raise ReplayError(f"update {outcome.update} was applied in the run and is skipped in the replay: {result.cause}")
    if result.digest != outcome.digest:
        raise ReplayError(f"update {outcome.update} gives weights {result.digest}, recorded were {outcome.digest}")
    learner.adopt(outcome.version)
