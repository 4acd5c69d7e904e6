"""`penstock replay`: executes every recorded plan again, in one process, from the archive alone, and compares the weights bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from penstock.batching import pack
from penstock.errors import InvariantError, ReplayError
from penstock.lab.archive import Archive, opened
from penstock.learner.checkpoints import read_checkpoint
from penstock.learner.config import LearnerConfig
from penstock.learner.credit import AlgorithmConfig, flat_config
from penstock.learner.selection import select, trained
from penstock.learner.step import Learner
from penstock.models import load_model, weights_digest
from penstock.types import Outcome, Plan


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
    """Replay a run from its first kept checkpoint; one that is alive, up to where it is now.

    Raises `ReplayError` at the first update that gives other weights than were recorded, and `CorruptError` for a rollout, plan or checkpoint that is
    not what it was. Of `model` only the shape counts, unless a KL is measured against the initial weights.
    """
    with opened(run_dir) as archive:
        replayer = _Replayer(archive, model, algorithm, learner_config, tokens_per_row)
        outcomes = [archive.ledger.outcomes[update] for update in range(replayer.first_update, archive.ledger.next_update)]
        for done, outcome in enumerate(outcomes):
            progress(done, len(outcomes))
            replayer.execute(outcome)
        progress(len(outcomes), len(outcomes))
        return Replayed(first_update=replayer.first_update, updates=len(outcomes), digest=replayer.digest)


class _Replayer:
    """A learner that lives through a run again."""

    def __init__(self, archive: Archive, model: Path, algorithm: AlgorithmConfig, learner_config: LearnerConfig, tokens_per_row: int | None) -> None:
        self._archive, self._algorithm, self._tokens_per_row = archive, algorithm, tokens_per_row
        self._config = flat_config(algorithm, learner_config, tokens_per_row)
        ledger = archive.ledger
        if not ledger.checkpoints:
            raise ReplayError(f"{archive.run_dir} has no checkpoint to start from")
        self.first_update = min(ledger.checkpoints)
        state = read_checkpoint(archive.run_dir / "checkpoints", self.first_update, run=archive.run, digest=ledger.checkpoints[self.first_update].digest).state
        self._learner = Learner(load_model(model), learner_config, algorithm.loss, max_lag=ledger.laws.max_lag)
        if learner_config.reference == "initial" and self._learner.reference.digest != ledger.versions[0].digest:
            raise ReplayError(f"learner.reference is initial, and {model} holds other weights than the run began with ({ledger.versions[0].digest})")
        self._learner.restore(state)
        if self.digest != ledger.versions[state.version].digest:
            raise ReplayError(f"checkpoint update_{self.first_update} holds {self.digest}, version {state.version} is {ledger.versions[state.version].digest}")

    @property
    def digest(self) -> str:
        """Of the weights, as far as they are."""
        return weights_digest(self._learner.weights)

    def execute(self, outcome: Outcome) -> None:
        """One update again; its weights must be those of `outcome`."""
        plan = self._archive.plan(outcome.update)
        groups = self._archive.fetch(plan)
        if outcome.kind == "skipped" or outcome.version is None:
            return
        try:
            selection = select(groups, self._algorithm.filter_options, newest_version=plan.newest_version)
            example = pack(trained(selection, plan, self._algorithm).samples, tokens_per_row=self._tokens_per_row)
            result = self._learner.step(example, newest_version=plan.newest_version, gated=False)
        except InvariantError as error:
            raise ReplayError(f"update {outcome.update} cannot be executed again: {error}{self._suspects(plan)}") from error
        if result.kind == "skipped":
            raise ReplayError(f"update {outcome.update} was applied in the run and is skipped in the replay: {result.cause}{self._suspects(plan)}")
        if result.digest != outcome.digest:
            raise ReplayError(f"update {outcome.update} gives weights {result.digest}, recorded were {outcome.digest}{self._suspects(plan)}")
        self._learner.adopt(outcome.version)

    def _suspects(self, plan: Plan) -> str:
        """What is known to be different from when the plan was executed."""
        libraries = {name: metadata.version(name) for name in plan.request.libraries}
        changed = [*_changes(plan.request.config, self._config), *_changes(plan.request.libraries, libraries)]
        return "".join(f"; {change}" for change in changed)


def _changes(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    return [f"{name} was {value}, is {now.get(name, 'nothing')}" for name, value in then.items() if now.get(name) != value]
