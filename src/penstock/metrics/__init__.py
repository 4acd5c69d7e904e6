"""Metrics are records: a name from a catalogue, values, and a way of reducing them.

    metrics = Metrics(JsonlSink(run / "metrics.jsonl"), clock=SystemClock())
    metrics.emit(update, Mean("reward/sort/mean", rewards), Sum("learner/tokens", num_tokens))

Every part emits through this; `docs/metrics.md` lists what there is.
"""

from __future__ import annotations

from penstock.clock import Clock, SystemClock
from penstock.errors import InvariantError
from penstock.metrics._catalogue import METRICS, Metric, Reduction, find, named, reference
from penstock.metrics._prometheus import render_prometheus
from penstock.metrics._records import Last, Max, Mean, Min, Record, Sum, reduce
from penstock.metrics._sinks import Emission, JsonlSink, MemorySink, Sink, read_jsonl

__all__ = [
    "METRICS",
    "Emission",
    "JsonlSink",
    "Last",
    "Max",
    "Mean",
    "MemorySink",
    "Metric",
    "Metrics",
    "Min",
    "Record",
    "Reduction",
    "Sink",
    "Sum",
    "named",
    "read_jsonl",
    "reference",
    "render_prometheus",
]


class Metrics:
    """Reduces records and hands the numbers to all sinks."""

    def __init__(self, *sinks: Sink, clock: Clock | None = None) -> None:
        self._sinks = sinks
        self._clock = clock or SystemClock()

    def emit(self, step: int, *records: Record, time: float | None = None) -> None:
        """Emit records for a step, all or none. Records with the same name are reduced together; one without values is left out.

        Raises `InvariantError` for a name that is not in the catalogue or is reduced otherwise there, `InvalidError` for NaN and infinity.
        """
        numbers: dict[str, list[float]] = {}
        for record in records:
            metric, _ = find(record.name)
            if metric.reduction != record.reduction:
                raise InvariantError(f"metric {record.name} is reduced by {metric.reduction}, not by {record.reduction}")
            numbers.setdefault(record.name, []).extend(record.numbers())
        reduced = {name: reduce(find(name)[0].reduction, several) for name, several in numbers.items()}
        values = {name: value for name, value in reduced.items() if value is not None}
        emission = Emission(step=step, time=self._clock.now() if time is None else time, values=values)
        for sink in self._sinks:
            sink.write(emission)

    def close(self) -> None:
        """Close all sinks."""
        for sink in self._sinks:
            sink.close()
