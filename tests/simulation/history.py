"""What happened, in order, and how it is told when a promise is broken."""

from __future__ import annotations

from penstock.wire import digest

_SHOWN = 40


class Violation(Exception):
    """A promise was broken. `subjects` name what it was broken for: a group, a rollout, an update, a version, an actor."""

    def __init__(self, promise: str, sentence: str, *subjects: object) -> None:
        super().__init__(f"{promise}: {sentence}")
        self.promise, self.sentence, self.subjects = promise, sentence, subjects


class History:
    """A list of events. Each names what it is about, so that the story of one group can be told without the rest."""

    def __init__(self) -> None:
        self._events: list[tuple[float, str, str, tuple[object, ...]]] = []

    def note(self, now: float, who: str, what: str, *subjects: object) -> None:
        self._events.append((now, who, what, subjects))

    def digest(self) -> str:
        """Of everything that happened: two runs of a seed give the same."""
        return digest("\n".join(map(_line, self._events)).encode())

    def about(self, subjects: tuple[object, ...]) -> list[str]:
        """The last events that concern `subjects`, and what the world did between them; all of the last events if nothing is named."""
        wanted = set(map(str, subjects))
        chosen = [event for event in self._events if not wanted or event[1] == "world" or not wanted.isdisjoint(map(str, event[3]))]
        return [_line(event) for event in chosen[-_SHOWN:]]


def _line(event: tuple[float, str, str, tuple[object, ...]]) -> str:
    now, who, what, subjects = event
    return f"{now:9.3f} s  {who:<10} {what} {' '.join(map(str, subjects))}".rstrip()
