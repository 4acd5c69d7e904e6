from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

from penstock.dashboard.charts import Mark, Series, chart, ticks
from penstock.dashboard.report import write_report

SUMMARY = {
    "eval_before": {"greedy": 0.42, "sampled": 0.157},
    "eval_after": {"greedy": 0.979, "sampled": None},
    "updates": 3,
    "wall_seconds": 99.5,
    "cpu_seconds": 150.25,
    "tokens_sampled": 1234,
    "tokens_trained": 1000,
    "mismatch": {"p999": 3.8e-06, "max": 1.1e-05, "tokens": 1000, "mixed_kv": 0},
    "ledger_imbalance": 0,
    "restarts": 1,
    "weights_digest": "2c95",
}


class Balance(HTMLParser):
    """Raises if an element is closed that is not the innermost open one."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def finished_run(tmp_path: Path, name: str = "demo") -> Path:
    run_dir = tmp_path / name
    run_dir.mkdir()
    lines = [
        {
            "step": step,
            "time": 100.0 + step,
            "reward/sort/mean": step / 2,
            "mismatch/tokens": 10,
            "mismatch/max": 1e-6,
            "off_policy/lag/mean": 1.0,
            "time/step": 1.0,
        }
        for step in range(3)
    ]
    lines.insert(2, {"step": 2, "time": 101.5, "learner/term": 2, "learner/replaying": 1})
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run_dir / "summary.json").write_text(json.dumps(SUMMARY))
    (run_dir / "config.yaml").write_text("run: {name: <script>alert(1)</script>}\n")
    return run_dir


def test_a_report_is_one_page_that_asks_nobody_for_anything(tmp_path: Path) -> None:
    text = write_report(finished_run(tmp_path)).read_text()
    balance = Balance()
    balance.feed(text)
    assert balance.open == []
    assert "<script" not in text
    assert not re.search(r"""(src|href)=|@import|url\(""", text)
    assert set(re.findall(r"https?://[^\"<\s]*", text)) == {"http://www.w3.org/2000/svg"}


def test_a_report_tells_what_came_of_the_run(tmp_path: Path) -> None:
    text = write_report(finished_run(tmp_path)).read_text()
    for expected in (
        "0.420 → 0.979",
        "0.157 → -",
        "balanced",
        "1.1e-05",
        "3.8e-06",
        "term 2, replaying updates 1-1",
        "penstock replay runs/demo",
        "step 3.0 s",
    ):
        assert expected in text, expected
    pictures = re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL)
    assert len(pictures) >= 4
    for picture in pictures:
        ElementTree.fromstring(picture)


def test_what_a_run_calls_itself_is_shown_as_text(tmp_path: Path) -> None:
    text = write_report(finished_run(tmp_path, "a<b>&c")).read_text()
    assert "Run a&lt;b&gt;&amp;c" in text and "<b>" not in text


def test_a_curve_goes_from_corner_to_corner() -> None:
    picture = chart([Series(name="s", points=[(0, 0.0), (10, 1.0)], colour="#000")], x_label="update", y_low=0.0, y_high=1.0, marks=[Mark(x=5, label="here")])
    root = ElementTree.fromstring(picture)
    line = root.find("{http://www.w3.org/2000/svg}polyline")
    assert line is not None
    assert line.attrib["points"] == "64.0,204.0 708.0,28.0"
    assert "here" in picture


def test_a_chart_without_points_is_no_chart_and_a_single_point_is_one() -> None:
    assert chart([Series(name="s", points=[], colour="#000")], x_label="x") == ""
    assert chart([Series(name="s", points=[(0, float("nan"))], colour="#000")], x_label="x") == ""
    assert "<circle" in chart([Series(name="s", points=[(3, 2.0)], colour="#000", dots=True)], x_label="x")


def test_ticks_are_round_and_lie_inside() -> None:
    assert ticks(0.0, 4.0) == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert ticks(3.2, 11.9) == [4.0, 6.0, 8.0, 10.0]
