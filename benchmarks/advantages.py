"""Estimators: GiGPO with string anchors, GRPO and RLOO on a million rows, similar states, thinking levels.

python benchmarks/advantages.py [--json] [--quick]
"""

from __future__ import annotations

import difflib
import statistics
from collections.abc import Iterator

import numpy as np

from _report import Result, against, arguments, bounded, cpu_seconds, median_cpu_seconds, report
from penstock.advantages import gigpo, grpo, rloo, rlvcr
from penstock.advantages.anchors import first_fit

MEMBERS, STEPS = 8, 50
GROUPS = 128


def step_columns(num_groups: int) -> tuple[np.ndarray, list[str], list[str], list[str]]:
    """Step rewards, trajectory, group and anchor of `num_groups` groups of 8 episodes of 50 steps, the anchors texts of about 70 characters."""
    rng = np.random.default_rng(0)
    num_rows = num_groups * MEMBERS * STEPS
    rewards_N = np.where(rng.random(num_rows) < 0.05, rng.random(num_rows), 0.0)
    trajectory_N = np.repeat(np.arange(num_groups * MEMBERS), STEPS)
    rooms_N = rng.integers(0, 40, num_rows)
    trajectory = [f"rollout-{number}" for number in trajectory_N.tolist()]
    group = [f"problem-{number}" for number in (trajectory_N // MEMBERS).tolist()]
    anchor = [f"You are in room {room} of the old house. There is a door to the north." for room in rooms_N.tolist()]
    return rewards_N, trajectory, group, anchor


def step_credit(repeats: int) -> Iterator[Result]:
    small, large = step_columns(GROUPS), step_columns(8 * GROUPS)
    seconds = median_cpu_seconds(lambda: gigpo(*small), repeats)
    yield bounded(f"gigpo, {GROUPS} x {MEMBERS} x {STEPS} rows with string anchors", seconds * 1e3, "ms", goal=150)
    # In turns, so that a machine that slows down slows both; and both warm: Python hashes a text once.
    gigpo(*large)
    pairs = [(cpu_seconds(lambda: gigpo(*large)), cpu_seconds(lambda: gigpo(*small))) for _ in range(max(repeats, 9))]
    yield bounded("gigpo, time for 8 times the rows", statistics.median(many / few for many, few in pairs), "times", goal=10)


def episode_credit(repeats: int) -> Iterator[Result]:
    rng = np.random.default_rng(0)
    rewards_N, group_N = rng.random(1_000_000), rng.integers(0, 125_000, 1_000_000)
    for name, estimator in (("grpo", grpo), ("rloo", rloo)):
        yield bounded(f"{name}, 1,000,000 rows", median_cpu_seconds(lambda estimator=estimator: estimator(rewards_N, group_N), repeats) * 1e3, "ms", goal=150)


def similar_states(repeats: int) -> Result:
    """400 texts of 500 characters, 40 places with small differences: first fit at 0.95, beside the same with `difflib`."""
    rng = np.random.default_rng(0)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz     "))
    places = ["".join(rng.choice(letters, 480)) for _ in range(40)]
    texts = [f"{places[row % 40]} step {row:03d} of {rng.integers(100, 999)} ok" for row in range(400)]
    ours = median_cpu_seconds(lambda: first_fit(texts, 0.95), repeats)
    peer = cpu_seconds(lambda: _first_fit_by_difflib(texts, 0.95))
    return against("similar states, 400 texts of 500 characters", ours * 1e3, "ms", peer="difflib", peer_value=peer * 1e3, goal=20)


def _first_fit_by_difflib(texts: list[str], threshold: float) -> list[int]:
    heads: list[str] = []
    clusters = []
    for text in texts:
        found = next((number for number, head in enumerate(heads) if difflib.SequenceMatcher(None, head, text).ratio() >= threshold), len(heads))
        if found == len(heads):
            heads.append(text)
        clusters.append(found)
    return clusters


def thinking_levels(repeats: int) -> Result:
    """640 steps of four levels each, in 16 groups of 8 episodes of 5 steps."""
    rng = np.random.default_rng(0)
    trajectory_N = np.repeat(np.arange(128), 5 * 4)
    step_N = np.repeat(np.arange(640), 4)
    columns = {
        "rewards": rng.integers(0, 2, 128).astype(np.float64)[trajectory_N],
        "group": trajectory_N // 8,
        "confidence": rng.random(2560),
        "cost": rng.integers(0, 400, 2560).astype(np.float64),
        "thinking_group": step_N,
        "trajectory": trajectory_N,
        "chosen": np.tile([True, False, False, False], 640),
        "level": np.tile([1, 2, 3, 4], 640),
    }
    work = lambda: rlvcr(**columns, thinking_diversity_w=0.5, thinking_cost_alpha=0.2)  # noqa: E731 - what is measured
    return bounded("rlvcr, 640 steps of four levels", median_cpu_seconds(work, repeats) * 1e3, "ms", goal=20)


def main() -> None:
    options = arguments(__doc__)
    repeats = 5 if options.quick else 15
    for result in (*step_credit(repeats), *episode_credit(repeats), similar_states(repeats), thinking_levels(repeats)):
        report(result, as_json=options.json)


if __name__ == "__main__":
    main()
