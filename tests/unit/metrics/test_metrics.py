"""Records, the catalogue, and where emissions go."""

from __future__ import annotations

import re
import resource
import signal
from pathlib import Path

import numpy as np
import pytest

from penstock.errors import CorruptError, InvalidError, InvariantError, StoreError
from penstock.metrics import (
    METRICS,
    Emission,
    JsonlSink,
    Last,
    Max,
    Mean,
    MemorySink,
    Metrics,
    Min,
    Record,
    Sum,
    named,
    read_jsonl,
    reference,
    render_prometheus,
)
from penstock.testing.clock import FakeClock

PROMISED_NAMES = [
    "replays/${env_type}/rollouts_in_buffer",
    "replays/${env_type}/tokens_in_buffer",
    "replays/${env_type}/frac_on_policy",
    "replays/${env_type}/new_rollouts",
    "replays/${env_type}/new_tokens",
    "replays/${env_type}/new_generated_tokens",
    "replays/${env_type}/reward/mean",
    "replays/${env_type}/reward/std",
    "replays/${env_type}/frac_truncated",
    "replays/${env_type}/rewards/${reward_name}/mean",
    "replays/${env_type}/rewards/${reward_name}/std",
    "replays/${env_type}/frac_used_in_batch",
    "batches/${env_type}/rollouts_used",
    "batches/${env_type}/tokens_used",
    "batches/${env_type}/frac_used",
    "reward/${env_type}/mean",
    "eval/${env_type}/avg@8",
    "eval/${env_type}/pass@8",
    "mismatch/p999",
    "mismatch/max",
    "off_policy/lag/mean",
    "off_policy/lag/max",
    "learner/loss",
    "learner/entropy",
    "learner/grad_norm",
    "learner/clip_frac",
    "learner/tokens_per_second",
    "time/wait_for_batch",
    "time/wait_for_weights",
    "ledger/open",
    "ledger/dropped",
]


def emitted(*records: Record) -> dict[str, float]:
    sink = MemorySink()
    Metrics(sink, clock=FakeClock()).emit(3, *records)
    return dict(sink.emissions[0].values)


def test_each_record_is_reduced_in_its_own_way() -> None:
    assert emitted(
        Mean("reward/sort/mean", np.array([1.0, 0.0, 0.0, 1.0])),
        Sum("learner/tokens", [3, 4]),
        Max("mismatch/max", (1e-6, 3e-6, 2e-6)),
        Last("ledger/ready", 5),
    ) == {"reward/sort/mean": 0.5, "learner/tokens": 7.0, "mismatch/max": 3e-6, "ledger/ready": 5.0}


def test_records_of_one_name_are_reduced_together() -> None:
    assert emitted(Mean("reward/sort/mean", [1.0]), Mean("reward/sort/mean", [0.0, 0.0, 0.0])) == {"reward/sort/mean": 0.25}


def test_no_values_emit_nothing_but_a_sum_of_zero() -> None:
    assert emitted(Mean("reward/sort/mean", []), Sum("learner/tokens", [])) == {"learner/tokens": 0.0}


def test_a_name_outside_the_catalogue_is_an_error() -> None:
    with pytest.raises(InvariantError, match="'learner/los' is not in the catalogue"):
        emitted(Mean("learner/los", 1.0))


def test_a_metric_that_is_reduced_otherwise_is_an_error() -> None:
    with pytest.raises(InvariantError, match="learner/loss is reduced by mean, not by min"):
        emitted(Min("learner/loss", 1.0))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [1.0, float("-inf")], np.array([np.nan])])
def test_what_is_not_finite_is_refused_and_nothing_of_the_emission_is_kept(value: float, tmp_path: Path) -> None:
    metrics = Metrics(JsonlSink(tmp_path / "metrics.jsonl"))
    with pytest.raises(InvalidError, match="metric learner/loss must be finite"):
        metrics.emit(0, Sum("learner/tokens", 1), Mean("learner/loss", value))
    assert list(read_jsonl(tmp_path / "metrics.jsonl")) == []


def test_lines_can_be_read_back(tmp_path: Path) -> None:
    path = tmp_path / "run" / "metrics.jsonl"
    metrics = Metrics(JsonlSink(path), clock=FakeClock(now=1000.0))
    metrics.emit(0, Last("ledger/ready", 1))
    metrics.emit(1, Last("ledger/ready", 2), time=7.5)
    metrics.close()
    assert list(read_jsonl(path)) == [{"step": 0, "time": 1000.0, "ledger/ready": 1.0}, {"step": 1, "time": 7.5, "ledger/ready": 2.0}]


@pytest.mark.parametrize("torn_bytes", [1, 20, 200_000])
def test_a_torn_last_line_is_not_read_and_is_cut_off_on_opening(torn_bytes: int, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    whole = b'{"step":0,"time":1.0}\n'
    path.write_bytes(whole + b'{"step":1' + b" " * torn_bytes)
    assert [row["step"] for row in read_jsonl(path)] == [0]
    metrics = Metrics(JsonlSink(path))
    assert path.read_bytes() == whole
    metrics.emit(2, Last("ledger/ready", 1))
    assert [row["step"] for row in read_jsonl(path)] == [0, 2]


def test_a_file_that_is_all_one_torn_line_starts_empty(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step"')
    JsonlSink(path).close()
    assert path.read_bytes() == b""


def test_a_spoiled_line_in_the_middle_is_told(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step":0}\n{"ste\n{"step":2}\n')
    with pytest.raises(CorruptError, match=r"line 2 of metrics.jsonl"):
        list(read_jsonl(path))


def test_a_line_that_the_disk_does_not_take_leaves_no_part_of_itself(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    metrics = Metrics(JsonlSink(path))
    metrics.emit(0, Last("ledger/ready", 1), time=1.0)
    size = path.stat().st_size
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, limits[1]))
    try:
        with pytest.raises(StoreError, match=r"metrics cannot be written to metrics.jsonl"):
            metrics.emit(1, Last("ledger/ready", 1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert path.stat().st_size == size
    metrics.emit(2, Last("ledger/ready", 1))
    assert [row["step"] for row in read_jsonl(path)] == [0, 2]


@pytest.mark.parametrize("name", PROMISED_NAMES)
def test_every_name_that_was_promised_is_in_the_catalogue(name: str) -> None:
    assert render_prometheus({re.sub(r"\$\{\w+\}", "x", name): 1.0}).startswith("# HELP penstock_")


def test_a_label_with_a_slash_stays_one_part_of_the_name() -> None:
    name = named("replays/<env>/reward/mean", env="games/chess")
    assert emitted(Mean(name, 1.0)) == {"replays/games%2Fchess/reward/mean": 1.0}
    with pytest.raises(InvariantError):
        named("replays/<env>/reward/mean", environment="chess")


def test_prometheus_gets_labels_and_one_header_per_family() -> None:
    assert render_prometheus({"replays/a/reward/mean": 0.5, 'replays/b"\\/reward/mean': 1, "eval/a/pass@4": 0.25}, labels={"run": "demo"}) == (
        "# HELP penstock_replays_reward_mean Reward of the new rollouts.\n"
        "# TYPE penstock_replays_reward_mean gauge\n"
        'penstock_replays_reward_mean{run="demo",env="a"} 0.5\n'
        'penstock_replays_reward_mean{run="demo",env="b\\"\\\\"} 1.0\n'
        "# HELP penstock_eval_pass Share of held-out problems that at least one of k samples solves.\n"
        "# TYPE penstock_eval_pass gauge\n"
        'penstock_eval_pass{run="demo",env="a",k="4"} 0.25\n'
    )


def test_no_two_metrics_share_a_family() -> None:
    names = [re.sub(r"<\w+>", "x", pattern) for pattern in METRICS]
    families = [render_prometheus({name: 0}).split()[2] for name in names]
    assert len(set(families)) == len(families)


def test_the_page_is_what_the_catalogue_says() -> None:
    page = Path(__file__).parents[3] / "docs" / "metrics.md"
    assert page.read_text() == reference(), "run: python -m penstock.metrics > docs/metrics.md"


def test_several_writers_take_turns_and_a_torn_line_between_them_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    first, second = JsonlSink(path), JsonlSink(path)
    first.write(Emission(step=0, time=0.0, values={"ledger/ready": 1.0}))
    with path.open("ab") as killed:
        killed.write(b'{"step": 7, "ti')
    second.write(Emission(step=1, time=0.0, values={"ledger/ready": 2.0}))
    first.write(Emission(step=2, time=0.0, values={"ledger/ready": 3.0}))
    assert [line["step"] for line in read_jsonl(path)] == [0, 1, 2]
