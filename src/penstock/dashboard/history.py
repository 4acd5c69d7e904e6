"""The metrics of a run as curves and facts. An update that was computed twice because of a kill counts as it was the last time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Line = Mapping[str, Any]

TIME_SPLIT = ("wait_for_batch", "fetch", "step", "wait_for_weights")
"""Where the learner's time goes, as its own metrics tell it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The start of a learner's life that had something to do again."""

    term: int
    first_update: int
    last_update: int
    equal: bool | None = None
    """Whether it came to the recorded weights; None while it runs."""

    def __str__(self) -> str:
        """As people read it.

        >>> str(Replay(term=2, first_update=41, last_update=43, equal=True))
        'term 2, replayed updates 41-43, digests equal'
        """
        verb = "replaying" if self.equal is None else "replayed"
        result = "" if self.equal is None else ", digests equal" if self.equal else ", digests DIFFER: went on from a fork"
        return f"term {self.term}, {verb} updates {self.first_update}-{self.last_update}{result}"


class History:
    """Takes lines of `metrics.jsonl` in order."""

    def __init__(self, lines: Iterable[Line] = ()) -> None:
        self._updates: dict[int, Line] = {}
        self._evaluations: dict[int, dict[str, float]] = {}
        self._ledgers: dict[int, Line] = {}
        self.term = 0
        self.replays: list[Replay] = []
        self.started_at: float | None = None
        """Time of the first line."""
        for line in lines:
            self.add(line)

    def add(self, line: Line) -> None:
        """Take one more line."""
        step, time = int(line["step"]), float(line["time"])
        self.started_at = time if self.started_at is None else self.started_at
        if "mismatch/tokens" in line:
            self._updates[step] = line
        if "learner/term" in line:
            self._begin(int(line["learner/term"]), step, int(line.get("learner/replaying", 0)))
        elif "learner/replay_equal" in line and self.replays:
            last = self.replays[-1]
            self.replays[-1] = Replay(term=last.term, first_update=last.first_update, last_update=last.last_update, equal=bool(line["learner/replay_equal"]))
        if "ledger/imbalance" in line:
            self._ledgers[step] = line
        evaluated = {name: float(value) for name, value in line.items() if name.startswith("eval/")}
        if evaluated:
            self._evaluations.setdefault(step, {}).update(evaluated)

    @property
    def num_updates(self) -> int:
        """Updates that were computed."""
        return len(self._updates)

    @property
    def environments(self) -> tuple[str, ...]:
        """That something was trained on."""
        names = {name.split("/")[1] for line in self._updates.values() for name in line if name.startswith("reward/")}
        return tuple(sorted(names))

    def curve(self, name: str) -> list[tuple[int, float]]:
        """(update, value) of a metric that the learner tells for each update."""
        return [(step, float(line[name])) for step, line in sorted(self._updates.items()) if name in line]

    def reward(self) -> list[tuple[int, float]]:
        """(update, mean reward of the trained rollouts), over all environments."""
        return list(self._rewards())

    def times(self) -> list[tuple[int, float]]:
        """(update, seconds from the first line of the run to the update)."""
        return [(step, float(line["time"]) - (self.started_at or 0.0)) for step, line in sorted(self._updates.items())]

    def evaluations(self, name: str) -> list[tuple[int, float]]:
        """(updates done, mean over environments of what ends in `name`), such as `greedy`, or `avg@` for any number of samples."""
        found = []
        for step, values in sorted(self._evaluations.items()):
            wanted = [value for key, value in values.items() if key.split("/")[2].startswith(name)]
            if wanted:
                found.append((step, sum(wanted) / len(wanted)))
        return found

    def groups(self, state: str) -> list[tuple[int, float]]:
        """(updates done, groups in a state)."""
        return [(step, float(line.get(f"ledger/{state}", 0.0))) for step, line in sorted(self._ledgers.items())]

    def seconds(self) -> dict[str, float]:
        """Where the learner's time went, by phase."""
        return {phase: sum(float(line.get(f"time/{phase}", 0.0)) for line in self._updates.values()) for phase in TIME_SPLIT}

    def tokens_per_second(self, window: int = 10) -> float:
        """Trained tokens per second of wall time over the last updates."""
        recent = sorted(self._updates.values(), key=lambda line: float(line["time"]))[-window - 1 :]
        if len(recent) < 2:
            return 0.0
        elapsed = float(recent[-1]["time"]) - float(recent[0]["time"])
        return sum(float(line.get("learner/tokens", 0.0)) for line in recent[1:]) / max(elapsed, 1e-9)

    def _rewards(self) -> Iterator[tuple[int, float]]:
        for step, line in sorted(self._updates.items()):
            values = [float(value) for name, value in line.items() if name.startswith("reward/") and name.endswith("/mean")]
            if values:
                yield step, sum(values) / len(values)

    def _begin(self, term: int, next_update: int, replaying: int) -> None:
        self.term = term
        if replaying:
            self.replays.append(Replay(term=term, first_update=next_update - replaying, last_update=next_update - 1))
