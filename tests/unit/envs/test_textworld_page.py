"""The recorded runs of the text world: what the page and the picture say is what the recorded numbers say."""

from __future__ import annotations

import csv
import importlib.util
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "textworld"


def curves() -> ModuleType:
    spec = importlib.util.spec_from_file_location("textworld_curves", ROOT / "examples" / "textworld" / "curves.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def recorded() -> list[tuple[str, str, int, float | None, float | None, float | None]]:
    with (PAGE / "curves.csv").open(newline="") as file:
        return [
            (
                row["algorithm"],
                row["seed"],
                int(row["update"]),
                *(float(row[name]) if row[name] else None for name in ("reward", "held_out_greedy", "held_out_sampled")),
            )
            for row in csv.DictReader(file)
        ]


def test_the_table_is_that_of_the_recorded_numbers_for_three_seeds_each() -> None:
    page, rows = (PAGE / "README.md").read_text(), recorded()
    runs = sorted({(algorithm, seed) for algorithm, seed, *_ in rows})
    assert runs == [(algorithm, seed) for algorithm in ("gigpo", "grpo") for seed in "012"]
    for run in runs:
        rewards, greedy, sampled = ([row[column] for row in rows if row[:2] == run and row[column] is not None] for column in (3, 4, 5))
        means = f"{sum(rewards[:10]) / 10:.3f} | {sum(rewards[-10:]) / 10:.3f}"
        assert f"| {run[0]} | {run[1]} | {means} | {greedy[0]:.3f} -> {greedy[-1]:.3f} | {sampled[0]:.3f} -> {sampled[-1]:.3f} |" in page


def test_the_picture_is_drawn_from_the_recorded_numbers() -> None:
    assert curves().picture(recorded()) == (PAGE / "curves.svg").read_text()
