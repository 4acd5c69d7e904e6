"""Thinking levels of steps, as enrichment leaves them on rollouts: read for credit, and hung into traces where they are trained.

An annotation `thinking_levels` of step i (the i-th of `penstock.trace.steps`) has arrays `level`, `confidence`, `cost` and where known `entropy`, one entry
per level, and the value `chosen`: the level that was sampled. For levels that can be trained it holds injected segments, and in the value `segments` for each
level the first and the last + 1 of its own among them, or null. A failed one, or one that is not there, is a step that was not expanded. An annotation
without a step that failed is about all steps of its rollout.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.advantages import NUM_LEVELS
from penstock.errors import ConfigError, InvalidError
from penstock.types import Annotation, Mark, Message, Rollout, Segment, Trace

THINKING_LEVELS = "thinking_levels"
_LEVEL_TAG = re.compile(rf"\s*<level>\s*([1-{NUM_LEVELS}])\s*</level>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One level of one step. The default is a step that was not expanded: one level, of which nothing is known but that it was sampled."""

    level: int = 0
    """0: not known."""
    confidence: float = math.nan
    """Or the entropy, where that is the signal; NaN: not known."""
    cost: float = 0.0
    chosen: bool = True
    segments: tuple[Segment, ...] = ()
    """What this level would have said, for one that was not sampled. Parents count through the trace and then through all segments of the annotation."""
    first_segment: int = 0
    """Number of the first of them in the annotation."""


def level_said(reply: str) -> int:
    """The level that a reply begins with; 0 if it names none. It counts among the levels of a batch even where its step was not expanded.

    >>> level_said("<level>3</level><think>a key</think><action>take key</action>"), level_said("take key")
    (3, 0)
    """
    found = _LEVEL_TAG.match(reply)
    return int(found[1]) if found else 0


def is_complete(levels: Sequence[Level]) -> bool:
    """Whether there are as many levels as are weighed against each other, and all of them were scored."""
    return len(levels) == NUM_LEVELS and all(math.isfinite(level.confidence) for level in levels)


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What enrichment has found out about the steps of a rollout."""

    levels: Mapping[int, tuple[Level, ...]]
    """Of each step that was expanded."""
    failures: Mapping[int | None, str]
    """Why a step was not; None: why no step of the rollout was."""

    def lacking(self, step: int) -> str | None:
        """One word for why a step keeps the credit of its episode alone; None: all its levels were weighed."""
        levels = self.levels.get(step)
        if levels is None:
            failure = self.failures.get(step, self.failures.get(None))
            return "not_expanded" if failure is None else _word(failure)
        if is_complete(levels):
            return None
        return "unscored" if len(levels) == NUM_LEVELS else "not_four_levels"


def looked_at(rollout: Rollout, annotations: Sequence[Annotation], estimator: str, signal: str = "confidence") -> Looked:
    """What the annotations of a rollout say, each about another step.

    ConfigError if nobody has looked at the rollout at all; InvalidError for an annotation that contradicts itself.
    """
    own = [found for found in annotations if found.name == THINKING_LEVELS]
    if not own:
        raise ConfigError(
            f"algorithm.adv_estimator {estimator} needs the annotation {THINKING_LEVELS!r} on every rollout, and {rollout.rollout_uid} has none: "
            "nothing fills it in, or groups do not wait for it"
        )
    return Looked(
        levels={found.step: _levels(found, signal) for found in own if found.failed is None and found.step is not None},
        failures={found.step: found.failed for found in own if found.failed is not None},
    )


def _word(reason: str) -> str:
    """A reason as part of a metric's name.

    >>> _word("No level in the reply!")
    'no_level_in_the_reply'
    """
    return re.sub(r"[^a-z0-9]+", "_", reason.lower()).strip("_")[:48] or "failed"


def _levels(annotation: Annotation, signal: str) -> tuple[Level, ...]:
    where = f"annotation {annotation.name!r} of step {annotation.step} of rollout {annotation.rollout_uid}"
    quality_name = "confidence" if signal == "confidence" else "entropy"
    columns = [_numbers(annotation, name, where) for name in ("level", quality_name, "cost")]
    if len({len(column) for column in columns}) != 1:
        raise InvalidError(f"{where} has arrays of lengths {', '.join(str(len(column)) for column in columns)}; there must be one entry per level")
    chosen = annotation.values.get("chosen")
    if [level for level in columns[0] if level == chosen] != [chosen]:
        raise InvalidError(f"{where} says that level {chosen!r} was chosen, of levels {', '.join(f'{level:g}' for level in columns[0])}")
    spans = annotation.values.get("segments") or [None] * len(columns[0])
    return tuple(
        _with_segments(Level(level=int(level), confidence=quality, cost=cost, chosen=level == chosen), annotation, span, where)
        for level, quality, cost, span in zip(*columns, spans, strict=True)
    )


def _numbers(annotation: Annotation, name: str, where: str) -> list[float]:
    if name not in annotation.arrays:
        raise InvalidError(f"{where} has no array {name!r}")
    return [float(value) for value in annotation.arrays[name]]


def _with_segments(level: Level, annotation: Annotation, span: Any, where: str) -> Level:
    if span is None or level.chosen:
        return level
    start, stop = span
    if not 0 <= start < stop <= len(annotation.segments):
        raise InvalidError(f"{where} gives level {level.level} segments {start} to {stop} of {len(annotation.segments)}")
    return replace(level, segments=annotation.segments[start:stop], first_segment=start)


def with_alternatives(rollout: Rollout, expanded: Mapping[int, Sequence[Level]]) -> tuple[Rollout, dict[tuple[int, int], int]]:
    """The rollout with its alternatives as further branches of its trace, and the message of each, by step and place among the levels."""
    segments, marks = list(rollout.trace.segments), list(rollout.trace.marks)
    num_recorded = len(segments)
    message_of: dict[tuple[int, int], int] = {}
    for step, levels in sorted(expanded.items()):
        for place, level in enumerate(levels):
            if not level.segments:
                continue
            start = len(segments)
            # Inside the annotation this level's first segment has number `num_recorded + first_segment`; here it has number `start`.
            shift = start - (num_recorded + level.first_segment)
            segments += [_moved(segment, num_recorded, shift) for segment in level.segments]
            message_of[step, place] = len(marks)
            marks.append(Mark(message=Message(role="assistant"), start=start, stop=len(segments)))
    return replace(rollout, trace=Trace(segments=tuple(segments), marks=tuple(marks))), message_of


def _moved(segment: Segment, num_recorded: int, shift: int) -> Segment:
    if segment.parent is None or segment.parent < num_recorded:
        return segment
    return replace(segment, parent=segment.parent + shift)
