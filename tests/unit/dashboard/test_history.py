from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from penstock.dashboard.following import Follower
from penstock.dashboard.history import History, Replay


def update(step: int, reward: float, *, time: float = 0.0, **more: float) -> dict[str, Any]:
    return {"step": step, "time": time, "reward/sort/mean": reward, "mismatch/tokens": 10.0, **more}


def test_a_line_is_given_once_and_only_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    follower = Follower(path)
    assert follower.lines() == []
    path.write_bytes(b'{"step":0}\n{"st')
    assert follower.lines() == [{"step": 0}]
    with path.open("ab") as file:
        file.write(b'ep":1}\n')
    assert follower.lines() == [{"step": 1}]
    assert follower.lines() == []


def test_a_file_that_was_made_anew_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step":0}\n{"step":1}\n')
    follower = Follower(path)
    assert len(follower.lines()) == 2
    path.write_bytes(b'{"step":7}\n')
    assert follower.lines() == [{"step": 7}]


def test_an_update_that_was_computed_twice_counts_as_it_was_the_last_time() -> None:
    history = History([update(0, 0.1), update(1, 0.2), update(1, 0.4)])
    assert history.reward() == [(0, 0.1), (1, 0.4)]
    assert history.num_updates == 2


def test_the_reward_is_the_mean_over_environments() -> None:
    assert History([update(0, 0.2, **{"reward/guess/mean": 0.6})]).reward() == [(0, 0.4)]


def test_a_replay_is_told_from_its_start_to_its_end() -> None:
    history = History([{"step": 0, "time": 0.0, "learner/term": 1, "learner/replaying": 0}])
    assert (history.term, history.replays) == (1, [])
    history.add({"step": 44, "time": 1.0, "learner/term": 2, "learner/replaying": 3})
    assert str(history.replays[-1]) == "term 2, replaying updates 41-43"
    history.add({"step": 43, "time": 2.0, "learner/replaying": 0, "learner/replay_equal": 1.0})
    assert history.replays == [Replay(term=2, first_update=41, last_update=43, equal=True)]


def test_a_replay_that_came_to_other_weights_says_so() -> None:
    history = History([{"step": 2, "time": 0.0, "learner/term": 3, "learner/replaying": 2}, {"step": 1, "time": 0.0, "learner/replay_equal": 0.0}])
    assert str(history.replays[0]) == "term 3, replayed updates 0-1, digests DIFFER: went on from a fork"


def test_evaluations_are_found_by_how_they_were_made() -> None:
    history = History([{"step": 0, "time": 0.0, "eval/sort/greedy": 0.4, "eval/sort/avg@4": 0.1}, {"step": 9, "time": 0.0, "eval/sort/greedy": 0.9}])
    assert history.evaluations("greedy") == [(0, 0.4), (9, 0.9)]
    assert history.evaluations("avg@") == [(0, 0.1)]


def test_speed_is_tokens_over_the_wall_time_of_the_last_updates() -> None:
    lines = [update(step, 0.5, time=10.0 + 2 * step, **{"learner/tokens": 100.0}) for step in range(4)]
    assert History(lines).tokens_per_second(window=2) == 50.0
    assert History(lines[:1]).tokens_per_second() == 0.0


def test_time_is_split_by_phase_and_others_lines_do_not_count() -> None:
    worker = {"step": 1, "time": 0.0, "time/step": 99.0}
    history = History([update(0, 0.5, **{"time/step": 1.0, "time/fetch": 0.5}), update(1, 0.5, **{"time/step": 2.0}), worker])
    assert history.seconds() == {"wait_for_batch": 0.0, "fetch": 0.5, "step": 3.0, "wait_for_weights": 0.0}


def test_a_history_reads_what_the_metrics_write(tmp_path: Path) -> None:
    from penstock.metrics import JsonlSink, Last, Mean, Metrics, Sum

    metrics = Metrics(JsonlSink(tmp_path / "metrics.jsonl"))
    metrics.emit(0, Mean("reward/sort/mean", [0.0, 1.0]), Sum("mismatch/tokens", 5), Last("ledger/imbalance", 0), Last("ledger/ready", 3))
    metrics.close()
    history = History(Follower(tmp_path / "metrics.jsonl").lines())
    assert history.reward() == [(0, 0.5)]
    assert history.groups("ready") == [(0, 3.0)]
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["ledger/ready"] == 3
