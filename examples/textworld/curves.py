"""Recorded curves of runs as a table and a picture.

    python examples/textworld/curves.py docs/textworld gigpo:0=runs/gigpo-0 gigpo:1=runs/gigpo-1 grpo:0=runs/grpo-0

Each word names algorithm, seed and the directory of a run. Writes `curves.csv` (mean reward of the trained groups, and held-out reward where it was
evaluated, by update) and `curves.svg` (mean over seeds).
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from penstock.dashboard.charts import Series, chart
from penstock.dashboard.history import History
from penstock.metrics import read_jsonl

COLUMNS = ("algorithm", "seed", "update", "reward", "held_out_greedy", "held_out_sampled")
COLOURS = ("#2563eb", "#c2570c", "#16803c", "#6b7280")
STYLE = "<style>text { font: 11px sans-serif; fill: #374151 } .grid { stroke: #e5e7eb }</style>"
Row = tuple[str, str, int, float | None, float | None, float | None]


def rows_of(algorithm: str, seed: str, run_dir: Path) -> list[Row]:
    """What a run's metrics tell, by update."""
    history = History(read_jsonl(run_dir / "metrics.jsonl"))
    reward, greedy, sampled = dict(history.reward()), dict(history.evaluations("greedy")), dict(history.evaluations("avg@"))
    updates = sorted({*reward, *greedy, *sampled})
    return [(algorithm, seed, update, reward.get(update), greedy.get(update), sampled.get(update)) for update in updates]


def mean_curve(rows: list[Row], algorithm: str, column: int) -> list[tuple[float, float]]:
    """(update, mean over seeds) of one column."""
    found: dict[int, list[float]] = {}
    for row in rows:
        value = row[column]
        if row[0] == algorithm and isinstance(value, float):
            found.setdefault(row[2], []).append(value)
    return [(float(update), sum(values) / len(values)) for update, values in sorted(found.items())]


def picture(rows: list[Row]) -> str:
    """Reward as lines and sampled held-out reward as dots, by algorithm."""
    series = []
    for algorithm, colour in zip(sorted({row[0] for row in rows}), COLOURS, strict=False):
        series.append(Series(name=f"{algorithm}, reward", points=mean_curve(rows, algorithm, 3), colour=colour))
        series.append(Series(name="held out", points=mean_curve(rows, algorithm, 5), colour=colour, dots=True))
    drawn = chart(series, x_label="update", y_low=0.0, y_high=1.0)
    return drawn.replace("\n", f"\n{STYLE}\n", 1)


def main(out: Path, words: list[str]) -> None:
    """Write both files."""
    rows: list[Row] = []
    for word in words:
        name, _, directory = word.partition("=")
        algorithm, _, seed = name.partition(":")
        rows += rows_of(algorithm, seed, Path(directory))
    out.mkdir(parents=True, exist_ok=True)
    with (out / "curves.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(rows)
    (out / "curves.svg").write_text(picture(rows))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
