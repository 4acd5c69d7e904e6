"""The whole loop: does the demo learn, does its control not, and what does an update cost beside TRL's GRPOTrainer.

python benchmarks/loop.py [--json] [--quick]

`--quick` leaves out the demo and its control, which take minutes, and the runs with latency, and takes about four minutes.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from _loop_run import Measured, train
from _report import Result, against, arguments, at_least, bounded, report

LATENCY_SECONDS = 0.1
RECIPE: dict[str, Any] = {
    "envs": {"prompt": {"kind": "_loop_env:PromptEnvironment", "concurrency": 128}},
    "actor": {"group_size": 8, "max_tokens": 128, "template": "plain"},
    "batch": {"groups_per_update": 8},
    "freshness": {"max_lag": 1},
    "learner": {"lr": 1.0e-4, "warmup_updates": 0},
    "weights": {"checkpoint_every_updates": 1000},
    "eval": {"problems": 1, "samples": 1},
}
"""8 groups of 8, prompts of 200 tokens, replies of up to 128; `_trl_loop` has the same by default."""


def main() -> None:
    options = arguments(__doc__)
    with tempfile.TemporaryDirectory() as scratch:
        for result in figures(Path(scratch), quick=options.quick):
            report(result, as_json=options.json)


def figures(scratch: Path, *, quick: bool) -> Iterator[Result]:
    model = scratch / "tiny"
    subprocess.run([sys.executable, "-m", "penstock", "init", "model", str(model), "--size", "tiny", "--template", "plain"], check=True, capture_output=True)
    updates, steps = (6, 2) if quick else (12, 2)
    peer = "TRL GRPOTrainer"
    ours_seconds, their_seconds, agreement = [], [], []
    # In turns, so that what else the machine does weighs on both; a median of rounds.
    for number in range(2 if quick else 3):
        ours = run(scratch, model, f"plain-{number}", updates)
        ours_seconds.append(ours.cpu_seconds)
        agreement.append(ours.summary["mismatch"]["p999"])
        their_seconds.append(statistics.fmean(trl(model, steps=steps, threads=1)["cpu_seconds"]))
    yield against("loop_cpu_per_update", statistics.median(ours_seconds), "s", peer=peer, peer_value=statistics.median(their_seconds), goal=1.5)
    yield bounded("loop_agreement_p999", max(agreement), "nats", goal=1e-5)
    if quick:
        return
    ours = run(scratch, model, "latency", updates, f"envs.prompt.latency_seconds={LATENCY_SECONDS}")
    # One process may use all cores where ours are several; it is measured with the number of threads that suits it best.
    walls = [statistics.median(trl(model, steps=steps, threads=threads, latency=LATENCY_SECONDS)["wall_seconds"]) for threads in (1, os.cpu_count() or 1)]
    yield against("loop_wall_per_update_100ms_env", ours.wall_seconds, "s", peer=peer, peer_value=min(walls), goal=1.4)
    yield from demo_figures(scratch)


def run(scratch: Path, model: Path, name: str, updates: int, *words: str) -> Measured:
    """A run of the recipe."""
    config = {"run": {"name": name, "dir": str(scratch), "updates": updates, "spare_learner": False}, "model": {"path": str(model)}, **RECIPE}
    path = scratch / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config))
    return train(path, list(words), scratch / name)


def trl(model: Path, *, steps: int, threads: int, latency: float = 0.0) -> dict[str, Any]:
    """The same work by the peer, in a process of its own."""
    words = [str(Path(__file__).parent / "_trl_loop.py"), str(model), "--steps", str(steps), "--threads", str(threads), "--latency", str(latency)]
    done = subprocess.run([sys.executable, *words], check=True, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": str(threads)})
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def demo_figures(scratch: Path) -> Iterator[Result]:
    """The demo itself, kill included, and the same run with advantages dealt out at random."""
    summary = demo(scratch / "demo", "--kill")
    before, after, agreement = summary["eval_before"], summary["eval_after"], summary["mismatch"]
    yield bounded("demo_greedy_before", before["greedy"], "reward", goal=0.5)
    yield at_least("demo_greedy_gain", after["greedy"] - before["greedy"], "reward", goal=0.3)
    yield at_least("demo_sampled_after", after["sampled"], "reward", goal=0.85)
    yield bounded("demo_wall", summary["wall_seconds"], "s", goal=180.0)
    yield bounded("demo_agreement_p999", agreement["p999"], "nats", goal=1e-5)
    yield bounded("demo_agreement_max", agreement["max"], "nats", goal=1e-4)
    yield bounded("demo_ledger_imbalance", summary["ledger_imbalance"], "groups", goal=0)
    control = demo(scratch / "control", "--no-kill", "algorithm.shuffle_advantages=true")
    for manner in ("greedy", "sampled"):
        yield bounded(f"demo_shuffled_{manner}_gain", control["eval_after"][manner] - control["eval_before"][manner], "reward", goal=0.05)


def demo(directory: Path, *words: str) -> dict[str, Any]:
    subprocess.run([sys.executable, "-m", "penstock", "demo", "--dir", str(directory), *words], check=True, capture_output=True)
    summary: dict[str, Any] = json.loads((directory / "demo" / "summary.json").read_text())
    return summary


if __name__ == "__main__":
    main()
