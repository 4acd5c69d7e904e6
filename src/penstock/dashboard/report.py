"""`report.html`: a finished run on one page, with its curves as pictures. Needs nothing but itself: no script, no font, no other host."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import msgspec

from penstock.dashboard.charts import Mark, Series, chart
from penstock.dashboard.following import Follower
from penstock.dashboard.history import History

_BLUE, _GREEN, _ORANGE, _RED, _GREY = "#2563eb", "#16803c", "#c2570c", "#b91c1c", "#6b7280"

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 780px; margin: 2em auto; padding: 0 1em; color: #111827; }
h1 { font-size: 1.5em; } h2 { font-size: 1.1em; margin: 2em 0 0.3em; }
table { border-collapse: collapse; } td, th { padding: 0.2em 1.2em 0.2em 0; text-align: left; vertical-align: top; }
svg { width: 100%; height: auto; } svg text { font-size: 11px; fill: #374151; } svg text.legend { font-size: 12px; font-weight: 600; }
svg .grid { stroke: #e5e7eb; } svg line.mark { stroke: #b91c1c; stroke-dasharray: 3 3; } svg text.mark { fill: #b91c1c; }
pre { background: #f3f4f6; padding: 0.8em; overflow-x: auto; } .note { color: #4b5563; margin: 0 0 0.5em; }
.bar { display: flex; height: 1.6em; } .bar div { color: white; font-size: 12px; padding: 0.2em 0.4em; overflow: hidden; white-space: nowrap; }
"""


def write_report(run_dir: Path) -> Path:
    """Write `report.html` of a finished run, from its `summary.json`, `metrics.jsonl` and `config.yaml`, and return where it is."""
    summary = msgspec.json.decode((run_dir / "summary.json").read_bytes(), type=dict[str, Any])
    history = History(Follower(run_dir / "metrics.jsonl").lines())
    path = run_dir / "report.html"
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(page(run_dir.name, summary, history, (run_dir / "config.yaml").read_text()), encoding="utf-8")
    temporary.replace(path)
    return path


def page(run: str, summary: Mapping[str, Any], history: History, config: str) -> str:
    """The whole page. Everything that comes from the run is escaped."""
    parts = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>penstock: {escape(run)}</title>',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<style>{_STYLE}</style></head><body>",
        f"<h1>Run {escape(run)}</h1>",
        _table(headline(summary, history)),
        *_pictures(history),
        "<h2>Where the learner's time went</h2>",
        _bar(history.seconds()),
        "<h2>Ask the run</h2>",
        f"<pre>penstock verify runs/{escape(run)}     # what writers were told, what the store holds, what checkpoints consumed",
        f"penstock replay runs/{escape(run)}     # rebuild the final weights from the archive, bit for bit</pre>",
        f"<details><summary>Config</summary><pre>{escape(config)}</pre></details>",
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def headline(summary: Mapping[str, Any], history: History) -> list[tuple[str, str]]:
    """What came of the run, as (what, how it is)."""
    before, after, agreement = summary["eval_before"], summary["eval_after"], summary["mismatch"]
    rows = [
        ("held out, greedy", f"{_number(before['greedy'])} → {_number(after['greedy'])}"),
        ("held out, sampled", f"{_number(before['sampled'])} → {_number(after['sampled'])}"),
        ("updates", f"{summary['updates']} in {summary['wall_seconds']:.0f} s, {summary['cpu_seconds']:.0f} CPU seconds of all processes"),
        ("tokens", f"{summary['tokens_sampled']:,} sampled, {summary['tokens_trained']:,} trained"),
        ("sampler and learner", f"differ by at most {agreement['max']:.1e} nats (p99.9 {agreement['p999']:.1e}) on {agreement['tokens']:,} tokens"),
        ("ledger", "balanced" if summary["ledger_imbalance"] == 0 else f"off by {summary['ledger_imbalance']}"),
        ("restarts", str(summary["restarts"])),
        ("weights", summary["weights_digest"]),
    ]
    return rows + [("replay", str(replay)) for replay in history.replays]


def _pictures(history: History) -> Iterator[str]:
    marks = [Mark(x=replay.last_update + 1, label=f"term {replay.term}") for replay in history.replays]
    evaluated = [
        Series(name="held out, greedy", points=history.evaluations("greedy"), colour=_ORANGE, dots=True),
        Series(name="held out, sampled", points=history.evaluations("avg@"), colour=_GREEN, dots=True),
    ]
    yield from _picture(
        "Reward",
        "Mean reward of the rollouts that each update was trained on, and of held-out problems.",
        chart([Series(name="trained", points=history.reward(), colour=_BLUE), *evaluated], x_label="update", y_low=0.0, y_high=1.0, marks=marks),
    )
    lag = [
        Series(name="mean", points=history.curve("off_policy/lag/mean"), colour=_BLUE),
        Series(name="max", points=history.curve("off_policy/lag/max"), colour=_GREY),
    ]
    yield from _picture("Policy lag", "How many versions old the trained tokens were.", chart(lag, x_label="update", y_low=0.0, marks=marks))
    entropy = [Series(name="entropy, nats", points=history.curve("learner/entropy"), colour=_GREEN)]
    yield from _picture("Entropy", "Of the policy at the trained tokens.", chart(entropy, x_label="update", y_low=0.0, marks=marks))
    agreement = [Series(name="1e-6 nats", points=[(step, value * 1e6) for step, value in history.curve("mismatch/max")], colour=_RED)]
    yield from _picture(
        "Agreement of sampler and learner",
        "Largest difference of a token's logprob in each update, under the version that sampled it.",
        chart(agreement, x_label="update", y_low=0.0, marks=marks),
    )
    groups = [Series(name=state, points=history.groups(state), colour=colour) for state, colour in (("open", _BLUE), ("ready", _GREEN), ("bound", _ORANGE))]
    yield from _picture("Groups under way", "By state.", chart(groups, x_label="update", y_low=0.0, marks=marks))
    times = [Series(name="seconds", points=history.times(), colour=_BLUE)]
    yield from _picture("Time", "Seconds from the start to each update.", chart(times, x_label="update", y_low=0.0, marks=marks))


def _picture(title: str, note: str, svg: str) -> Iterator[str]:
    if svg:
        yield f'<h2>{escape(title)}</h2><p class="note">{escape(note)}</p>{svg}'


def _table(rows: Sequence[tuple[str, str]]) -> str:
    return "<table>" + "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows) + "</table>"


def _bar(seconds: Mapping[str, float]) -> str:
    total = sum(seconds.values())
    if total <= 0:
        return '<p class="note">Nothing was measured.</p>'
    colours = (_GREY, _ORANGE, _GREEN, _BLUE)
    pieces = "".join(
        f'<div style="width: {100 * value / total:.1f}%; background: {colour}" title="{escape(name)}">{escape(name)} {value:.1f} s</div>'
        for (name, value), colour in zip(seconds.items(), colours, strict=True)
    )
    return f'<div class="bar">{pieces}</div>'


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
