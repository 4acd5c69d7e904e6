"""Trainable paths of a rollout. Called by whoever turns credit into a batch; the samples then go to `batching`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import InvalidError
from penstock.trace.checks import checked_number
from penstock.trace.paths import kept_paths, step_marks
from penstock.types import Rollout, Sample, Segment, Source, Trace, kept_segments

Advantages = float | Sequence[float] | Mapping[int, float] | None
"""One for the rollout; one for each of `steps(rollout)`; or by number of the message among `Trace.marks`. None: zero."""


def samples(rollout: Rollout, *, policy: str = "policy", advantages: Advantages = None, train_injected: bool = False) -> list[Sample]:
    """The paths from a root to a kept leaf that carry loss, in the order their leaves were recorded.

    Loss lies on the tokens that `policy` sampled, and with `train_injected` on those that it scored in injected segments (`injected_tokens` counts
    them; an injected segment without logprobs and versions is then refused). A segment that lies on several kept paths carries its loss on the first of
    them; so every such token of a kept branch carries loss exactly once, and a path that is left with none is no sample. Tokens of other policies are
    context: no loss, no version. Advantages stand on tokens with loss, 0 elsewhere; named arrays are 0 where a segment lacks them.
    """
    trace = rollout.trace
    advantage_of = _advantage_by_segment(trace, advantages)
    claimed: set[int] = set()
    found = []
    for path in kept_paths(trace):
        sample = _sample(rollout, path, policy, train_injected, advantage_of, claimed)
        if sample.loss_mask.any():
            found.append(sample)
        claimed.update(path)
    return found


def injected_tokens(rollout: Rollout, *, policy: str = "policy") -> int:
    """How many tokens carry loss under `train_injected` though nobody sampled them."""
    kept = zip(rollout.trace.segments, kept_segments(rollout.trace), strict=True)
    return sum(run.count for segment, is_kept in kept if is_kept and segment.source is Source.INJECTED for run in segment.versions if run.policy == policy)


def _sample(rollout: Rollout, path: tuple[int, ...], policy: str, train_injected: bool, advantage_of: float | Mapping[int, float], claimed: set[int]) -> Sample:
    """The tokens of one path; those of `claimed` segments carry their loss elsewhere."""
    segments = [rollout.trace.segments[index] for index in path]
    lengths = tuple(len(segment.ids) for segment in segments)
    starts = (0, *accumulate(lengths))
    num_tokens = starts[-1]
    loss_mask = np.zeros(num_tokens, np.bool_)
    logprobs = np.zeros(num_tokens, np.float32)
    versions = np.full(num_tokens, -1, np.int32)
    path_advantages = np.zeros(num_tokens, np.float32)
    mixed_kv = np.zeros(num_tokens, np.bool_)
    for index, segment, start in zip(path, segments, starts, strict=False):
        if not _is_trainable(index, segment, train_injected):
            continue
        assert segment.logprobs is not None
        offset = 0
        for run in segment.versions:
            ours, theirs = slice(start + offset, start + offset + run.count), slice(offset, offset + run.count)
            offset += run.count
            if run.policy != policy:
                continue
            logprobs[ours] = segment.logprobs[theirs]
            versions[ours] = run.version
            mixed_kv[ours] = run.mixed_kv
            if index not in claimed:
                loss_mask[ours] = True
                path_advantages[ours] = _advantage(advantage_of, index)
    return Sample(
        run=rollout.run,
        environment=rollout.environment,
        group_id=rollout.group_id,
        rollout_uid=rollout.rollout_uid,
        path=path,
        lengths=lengths,
        ids=segments[0].ids if len(segments) == 1 else np.concatenate([segment.ids for segment in segments]),
        loss_mask=loss_mask,
        logprobs=logprobs,
        versions=versions,
        advantages=path_advantages,
        mixed_kv=mixed_kv,
        arrays=_arrays_along(segments, starts),
        media=tuple((start, digest) for segment, start in zip(segments, starts, strict=False) for digest in segment.media),
    )


def _is_trainable(index: int, segment: Segment, train_injected: bool) -> bool:
    if segment.source is not Source.INJECTED or not train_injected:
        return segment.source is Source.SAMPLED
    if segment.logprobs is None or not segment.versions:
        raise InvalidError(f"segments[{index}] is injected and has no {'logprobs' if segment.logprobs is None else 'versions'}: it cannot be trained on")
    return True


def _arrays_along(segments: Sequence[Segment], starts: Sequence[int]) -> dict[str, npt.NDArray[Any]]:
    """Each named array over the whole path."""
    along: dict[str, npt.NDArray[Any]] = {}
    for name in dict.fromkeys(name for segment in segments for name in segment.arrays):
        parts = [segment.arrays[name] for segment in segments if name in segment.arrays]
        shapes = {part.shape[1:] for part in parts}
        if len(shapes) > 1:
            raise InvalidError(f"arrays[{name!r}] has entries of shapes {sorted(shapes)} on one path; they must be alike")
        along[name] = np.zeros((starts[-1], *shapes.pop()), np.result_type(*parts))
        for segment, start in zip(segments, starts, strict=False):
            if name in segment.arrays:
                along[name][start : start + len(segment.ids)] = segment.arrays[name]
    return along


def _advantage_by_segment(trace: Trace, advantages: Advantages) -> float | Mapping[int, float]:
    """One value for all, or by index of the segment."""
    if advantages is None:
        return 0.0
    if not isinstance(advantages, (Sequence, Mapping, np.ndarray)):
        return checked_number(advantages, "advantages")
    if not isinstance(advantages, Mapping):
        marks = step_marks(trace)
        if len(advantages) != len(marks):
            raise InvalidError(f"advantages must be one per step, got {len(advantages)} for {len(marks)} steps")
        advantages = dict(zip(marks, advantages, strict=True))
    by_segment = {}
    for mark, value in advantages.items():
        if not 0 <= mark < len(trace.marks):
            raise InvalidError(f"advantages name message {mark}, but the trace has {len(trace.marks)}")
        number = checked_number(value, f"advantages[{mark}]")
        by_segment.update(dict.fromkeys(range(trace.marks[mark].start, trace.marks[mark].stop), number))
    return by_segment


def _advantage(advantage_of: float | Mapping[int, float], segment: int) -> float:
    if not isinstance(advantage_of, Mapping):
        return advantage_of
    if segment not in advantage_of:
        raise InvalidError(f"advantages have no value for the message that segments[{segment}] belongs to")
    return advantage_of[segment]
