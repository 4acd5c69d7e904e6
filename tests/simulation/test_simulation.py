"""300 worlds, each to its end, with every promise looked at on the way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.running import run_seed, run_seeds

ROOT = Path(__file__).parents[2]
SEEDS_PER_TEST = 25


@pytest.mark.parametrize("first", range(0, 300, SEEDS_PER_TEST))
def test_every_promise_holds_whatever_fails(first: int) -> None:
    for run in run_seeds(range(first, first + SEEDS_PER_TEST)):
        assert run.failure is None, run.failure


def test_a_seed_gives_the_same_history_in_every_process() -> None:
    program = "from tests.simulation.running import run_seed; print(run_seed(7).digest)"
    other = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": "12345"}, capture_output=True, text=True, check=True)
    assert run_seed(7).digest == run_seed(7).digest == other.stdout.strip()


def test_a_failing_seed_tells_its_story_and_how_to_see_it_again() -> None:
    run = next(run for run in run_seeds(range(300), "lag_off_by_one") if run.failure is not None)
    story = str(run.failure)
    first, *events, last = story.splitlines()
    assert first.startswith(f"seed {run.seed}, event ") and ": F1: " in first
    assert 1 <= len(events) <= 40
    assert last == f"again: python -m tests.simulation --seeds 1 --first-seed {run.seed} --plant lag_off_by_one"
    again = subprocess.run([sys.executable, *last.split()[2:]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert again.returncode == 1
    assert story in again.stdout
