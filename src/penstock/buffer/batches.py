"""What is told when a batch is made: the metrics `replays/<env>/...` and `batches/<env>/...`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

from penstock import ledger as law
from penstock.ledger import BatchReport, EnvironmentReport, Ledger
from penstock.metrics import JsonlSink, Last, Mean, Metrics, Record, Sum, named
from penstock.types import GroupRecord, GroupState, LeaseRecord, Plan, Purpose, SpentGroups
from penstock.types import Record as LedgerRecord


def report_of(ledger: Ledger, records: Sequence[LedgerRecord]) -> BatchReport | None:
    """The report of the batch that `records` make, by a cut or a lease; None if they make none. To be asked before they are applied."""
    made = next((record for record in records if _makes_a_batch(ledger, record)), None)
    if made is None:
        return None
    assert isinstance(made, Plan | LeaseRecord)
    touched = [ledger.groups[record.id] for record in records if isinstance(record, GroupRecord) and record.id in ledger.groups]
    ready = [group for group in touched if group.state is GroupState.READY and group.purpose is Purpose.TRAIN]
    chosen = {planned.id for planned in made.groups} if ready else set()
    taken = [group for record in records if isinstance(record, SpentGroups) for group in record.groups]
    return law.batch_report(
        ledger.pools,
        run=ledger.run.run,
        step=made.update if isinstance(made, Plan) else made.fence,
        chosen=[*(group for group in ready if group.id in chosen), *taken],
        removed=[group for group in ready if group.id not in chosen],
        newest_version=ledger.newest_version,
    )


def _makes_a_batch(ledger: Ledger, record: LedgerRecord) -> bool:
    if isinstance(record, LeaseRecord):
        return record.fence > ledger.last_fence
    return isinstance(record, Plan) and not record.void


def batch_records(report: BatchReport) -> list[Record]:
    """The report as metrics. What is not known, such as the mean reward of no rollouts, is left out."""
    total = sum(found.used_tokens for found in report.environments.values())
    return [record for env, found in report.environments.items() for record in _records(env, found, total)]


def _records(env: str, found: EnvironmentReport, total_tokens: int) -> Iterator[Record]:
    pool, new = found.pool, found.new
    yield Last(named("replays/<env>/rollouts_in_buffer", env=env), pool.rollouts)
    yield Last(named("replays/<env>/tokens_in_buffer", env=env), pool.tokens)
    if found.frac_on_policy is not None:
        yield Last(named("replays/<env>/frac_on_policy", env=env), found.frac_on_policy)
    yield Sum(named("replays/<env>/new_rollouts", env=env), new.rollouts)
    yield Sum(named("replays/<env>/new_tokens", env=env), new.tokens)
    yield Sum(named("replays/<env>/new_generated_tokens", env=env), new.sampled_tokens)
    if new.reward.count:
        yield Mean(named("replays/<env>/reward/mean", env=env), new.reward.mean)
        yield Last(named("replays/<env>/reward/std", env=env), new.reward.std)
    if new.rollouts:
        yield Mean(named("replays/<env>/frac_truncated", env=env), new.truncated / new.rollouts)
    for name, spread in sorted(new.rewards.items()):
        yield Mean(named("replays/<env>/rewards/<name>/mean", env=env, name=name), spread.mean)
        yield Last(named("replays/<env>/rewards/<name>/std", env=env, name=name), spread.std)
    if pool.rollouts:
        yield Last(named("replays/<env>/frac_used_in_batch", env=env), found.used_rollouts / pool.rollouts)
    yield Sum(named("batches/<env>/rollouts_used", env=env), found.used_rollouts)
    yield Sum(named("batches/<env>/tokens_used", env=env), found.used_tokens)
    if total_tokens:
        yield Last(named("batches/<env>/frac_used", env=env), found.used_tokens / total_tokens)


class BatchLog:
    """Appends the metrics of every batch to `file`; without one, to `<directory>/<run>.jsonl`. To be given to a `Buffer` as `on_batch`."""

    def __init__(self, file: Path | None, directory: Path) -> None:
        self._file, self._directory = file, directory
        self._open: dict[Path, Metrics] = {}

    def __call__(self, report: BatchReport) -> None:
        path = self._file or self._directory / f"{quote(report.run, safe='')}.jsonl"
        if path not in self._open:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._open[path] = Metrics(JsonlSink(path))
        self._open[path].emit(report.step, *batch_records(report))

    def close(self) -> None:
        """Close the files."""
        for metrics in self._open.values():
            metrics.close()
