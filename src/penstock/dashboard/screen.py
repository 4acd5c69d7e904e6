"""Draws a snapshot in the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from penstock.dashboard.replies import ShownReply
from penstock.dashboard.snapshot import Snapshot
from penstock.dashboard.sparkline import sparkline

_COLOURS = ("cyan", "yellow", "magenta", "green", "blue", "red")
_STATES = ("open", "complete", "ready", "bound", "spent")
_LAST_EVENTS = 5


def screen(now: Snapshot, *, width: int = 60) -> RenderableType:
    """The whole view; `width` is that of curves."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold")
    grid.add_column()
    for name, what in _rows(now, width):
        grid.add_row(name, what)
    events = [Text(f"  {event}", style="dim") for event in now.events[-_LAST_EVENTS:]]
    title = f"penstock · run {now.run} · {now.phase} · update {now.updates_done}/{now.updates} · {clock(now.elapsed_seconds)}"
    return Panel(Group(grid, Text(), *events), title=title, title_align="left")


def clock(seconds: float) -> str:
    """Minutes and seconds.

    >>> clock(83.4)
    '1:23'
    """
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def _rows(now: Snapshot, width: int) -> Iterator[tuple[str, RenderableType]]:
    reward = f"  {_recent(now.rewards):.2f}" if now.rewards else "waiting for the first update"
    yield "reward", Text(sparkline(now.rewards, width=width, low=0.0, high=1.0), style="green").append(reward, style="bold")
    if now.greedy:
        yield "held out", Text(held_out(now))
    lag = f"  mean {_recent(now.lags):.1f}, max {now.lag_max} of {now.max_lag} versions" if now.lags else ""
    yield "policy lag", Text(sparkline(now.lags, width=width, low=0.0, high=max(1.0, float(now.max_lag))), style="yellow").append(lag, style="default")
    rate = _recent(now.sampled_per_second, 4) if now.sampled_per_second else 0.0
    yield "sampling", Text(sparkline(now.sampled_per_second, width=width, low=0.0), style="cyan").append(f"  {rate:,.0f} tokens/s", style="default")
    yield "training", Text(f"{now.trained_per_second:,.0f} tokens/s")
    yield "groups", Text(groups(now))
    yield "term", Text(str(now.replay) if now.replay is not None else f"term {now.term}", style="bold red" if _is_replaying(now) else "")
    if now.mismatch_tokens:
        yield "agreement", Text(f"sampler and learner differ by at most {now.mismatch_max:.1e} nats on {now.mismatch_tokens:,} tokens")
    yield "processes", _parts(now)
    if now.reply is not None:
        yield "a reply", reply_text(now.reply)


def groups(now: Snapshot) -> str:
    """Groups by state, and whether all are accounted for."""
    dropped = sum(count for state, count in now.groups.items() if state.startswith("dropped"))
    known = ", ".join(f"{now.groups.get(state, 0)} {state}" for state in _STATES)
    return f"{known}, {dropped} dropped; {'all accounted for' if now.imbalance == 0 else f'{now.imbalance} UNACCOUNTED FOR'}"


def held_out(now: Snapshot) -> str:
    """The held-out reward, first and last."""
    samples = dict(now.sampled)
    shown = [now.greedy[0]] if len(now.greedy) == 1 else [now.greedy[0], now.greedy[-1]]
    return " -> ".join(f"greedy {value:.3f}" + (f", sampled {samples[step]:.3f}" if step in samples else "") + f" (update {step})" for step, value in shown)


def reply_text(reply: ShownReply) -> Text:
    """A reply whose tokens have the colour of the version that sampled them."""
    text = Text(reply.prompt, style="dim")
    for token in reply.tokens:
        # Control characters would move the cursor; a model may sample anything.
        spelled = "".join(character if character.isprintable() else "·" for character in token.text) or "·"
        text.append(spelled, style=f"bold {colour(token.version)}")
    text.append("   sampled by version ", style="dim")
    for place, version in enumerate(reply.versions):
        text.append(", " if place else "", style="dim").append(str(version), style=f"bold {colour(version)}")
    return text


def colour(version: int) -> str:
    """Of a version; neighbours differ."""
    return _COLOURS[version % len(_COLOURS)]


def _parts(now: Snapshot) -> Text:
    text = Text()
    for place, part in enumerate(now.parts):
        style = "green" if part.state == "ready" else "dim" if part.state in ("ended", "stopped") else "bold red"
        text.append("  " if place else "").append(part.name, style=style)
        if part.state not in ("ready", "ended"):
            text.append(f" {part.state}", style=style)
        if part.restarts:
            text.append(f" ({part.restarts} restart{'s' if part.restarts > 1 else ''})", style="dim")
    return text


def _recent(values: tuple[float, ...], count: int = 5) -> float:
    last = values[-count:]
    return sum(last) / len(last)


def _is_replaying(now: Snapshot) -> bool:
    return now.replay is not None and now.replay.equal is None
