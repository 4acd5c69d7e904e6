"""Runs `penstock train` for a benchmark and measures all its processes, from outside."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from penstock.orchestrator.state import read_state
from penstock.process.identity import cpu_seconds

LOOK_SECONDS = 0.1
FIRST_MEASURED = 2
"""Updates before this one also pay for the start."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What updates of a run cost, when it is under way."""

    wall_seconds: float
    """Median of an update."""
    cpu_seconds: float
    """Mean of an update, all processes together."""
    tokens_trained: float
    """Mean of an update."""
    summary: dict[str, Any]


def train(yaml: Path, words: list[str], run_dir: Path) -> Measured:
    """Run to the end and measure the updates after the first few."""
    command = [sys.executable, "-m", "penstock", "train", str(yaml), *words]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))}
    used: list[tuple[float, float]] = []
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            used.append((time.time(), _cpu_of(run_dir, process.pid)))
            time.sleep(LOOK_SECONDS)
        assert process.stderr is not None
        if process.returncode != 0:
            raise RuntimeError(f"penstock train ended with {process.returncode}: {process.stderr.read()[-2000:]}")
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    updates = sorted((line for line in lines if "learner/tokens" in line), key=lambda line: line["step"])[FIRST_MEASURED:]
    times = [line["time"] for line in updates]
    return Measured(
        wall_seconds=statistics.median(later - earlier for earlier, later in pairwise(times)),
        cpu_seconds=(_at(used, times[-1]) - _at(used, times[0])) / (len(times) - 1),
        tokens_trained=statistics.fmean(line["learner/tokens"] for line in updates[1:]),
        summary=json.loads((run_dir / "summary.json").read_text()),
    )


def _cpu_of(run_dir: Path, orchestrator: int) -> float:
    """CPU seconds of the orchestrator and of the parts that live as long as the run. Evaluation is no part of an update."""
    state = read_state(run_dir / "state.json")
    parts = [part.process.pid for part in state.parts if part.process is not None and not part.name.startswith("eval")] if state is not None else []
    return sum(cpu_seconds(pid) for pid in (orchestrator, *parts))


def _at(used: list[tuple[float, float]], moment: float) -> float:
    """CPU seconds used at a moment between two looks."""
    place = min(max(1, bisect_left(used, (moment, 0.0))), len(used) - 1)
    (earlier, before), (later, after) = used[place - 1], used[place]
    return before + (after - before) * (moment - earlier) / max(later - earlier, 1e-9)
