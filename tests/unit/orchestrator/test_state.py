import json
import os
from pathlib import Path

from penstock.orchestrator.state import Phase, RunState, describe_state, read_state, write_state
from penstock.orchestrator.summary import HeldOut, MismatchSummary, Summary, describe_summary, mismatch_of, read_summary, write_summary
from penstock.process.identity import identify
from penstock.process.supervisor import PartState, PartStatus

PARTS = (PartStatus(name="learner", state=PartState.READY, process=identify(os.getpid()), restarts=2, last_exit="SIGKILL"),)
STATE = RunState(
    run="r", phase=Phase.RUNNING, orchestrator=identify(os.getpid()), buffer_url="http://b", updates=9, updates_done=4, parts=PARTS, written_at=100.0
)


def test_a_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    assert read_state(path) is None
    write_state(path, STATE)
    assert read_state(path) == STATE
    assert [found.name for found in tmp_path.iterdir()] == ["state.json"]
    path.write_text("{")
    assert read_state(path) is None


def test_a_state_in_words_shows_parts_while_it_runs_and_a_kill_when_it_does_not() -> None:
    running = describe_state(STATE, is_held=True, now=103.0)
    assert "running, 4 of 9 updates" in running
    assert "started again 2 times, last after SIGKILL" in running
    assert "3 s ago" in running
    killed = describe_state(STATE, is_held=False, now=103.0)
    assert "killed while running" in killed
    assert "SIGKILL" not in killed


SUMMARY = Summary(
    eval_before=HeldOut(greedy=0.4, sampled=0.2),
    eval_after=HeldOut(greedy=0.9, sampled=0.8),
    updates=9,
    wall_seconds=10.0,
    cpu_seconds=20.0,
    tokens_sampled=1000,
    tokens_trained=900,
    mismatch=MismatchSummary(p999=1e-6, max=2e-6, tokens=900, mixed_kv=0),
    ledger_imbalance=0,
    restarts=1,
    weights_digest="ab",
)


def test_a_summary_has_the_fields_that_others_rely_on(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    assert read_summary(path) is None
    write_summary(path, SUMMARY)
    assert read_summary(path) == SUMMARY
    fields = json.loads(path.read_text())
    assert list(fields) == [
        "eval_before",
        "eval_after",
        "updates",
        "wall_seconds",
        "cpu_seconds",
        "tokens_sampled",
        "tokens_trained",
        "mismatch",
        "ledger_imbalance",
        "restarts",
        "weights_digest",
    ]
    assert fields["eval_after"] == {"greedy": 0.9, "sampled": 0.8}
    assert list(fields["mismatch"]) == ["p999", "max", "tokens", "mixed_kv"]
    assert "greedy 0.400 -> 0.900" in describe_summary("r", SUMMARY)


def test_agreement_counts_an_update_that_was_computed_twice_once() -> None:
    lines = [
        {"step": 0, "mismatch/max": 3e-6, "mismatch/tokens": 998, "mismatch/histogram/1.00e-07": 997, "mismatch/histogram/3.16e-06": 1, "mismatch/mixed_kv": 1},
        {"step": 1, "mismatch/max": 9e-6, "mismatch/tokens": 3, "mismatch/histogram/1.00e-05": 3, "mismatch/mixed_kv": 0},
        {"step": 1, "mismatch/max": 2e-6, "mismatch/tokens": 2, "mismatch/histogram/2.15e-06": 2, "mismatch/mixed_kv": 0},
        {"step": 1, "reward/sort/mean": 0.5},
    ]
    assert mismatch_of(lines) == MismatchSummary(p999=2.15e-6, max=3e-6, tokens=1000, mixed_kv=1)
    assert mismatch_of([]) == MismatchSummary()
