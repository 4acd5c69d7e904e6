"""Tells a run in lines, where nobody could watch a view: in a pipe, a log, a build."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.dashboard.screen import clock, groups, held_out
from penstock.dashboard.snapshot import Snapshot


@dataclass(slots=True)
class Teller:
    """Says what is new in a snapshot: events at once, progress every `every_seconds`."""

    every_seconds: float = 10.0
    _events: int = field(default=0, init=False)
    _held_out: int = field(default=0, init=False)
    _replay: str = field(default="", init=False)
    _said_at: float = field(default=float("-inf"), init=False)

    def lines(self, now: Snapshot) -> list[str]:
        """What to say about `now`."""
        found = list(now.events[self._events :])
        self._events = len(now.events)
        if now.replay is not None and str(now.replay) != self._replay:
            self._replay = str(now.replay)
            found.append(self._replay)
        if len(now.greedy) > self._held_out:
            self._held_out = len(now.greedy)
            found.append(f"held out: {held_out(now)}")
        due = now.elapsed_seconds - self._said_at >= self.every_seconds
        # The first reward is news by itself.
        if now.rewards and (due or self._said_at < 0):
            self._said_at = now.elapsed_seconds
            found.append(progress(now))
        return [f"[{clock(now.elapsed_seconds)}] {line}" for line in found]


def progress(now: Snapshot) -> str:
    """How far a run is, in one line."""
    last = now.rewards[-5:]
    lag = now.lags[-1] if now.lags else 0.0
    rate = now.sampled_per_second[-1] if now.sampled_per_second else 0.0
    return (
        f"update {now.updates_done}/{now.updates}: reward {sum(last) / len(last):.2f}, lag {lag:.1f}, "
        f"{rate:,.0f} tokens/s sampled, {now.trained_per_second:,.0f} trained; groups: {groups(now)}"
    )
