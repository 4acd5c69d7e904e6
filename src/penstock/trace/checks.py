"""What a trace may hold. Every value that enters one crosses this border; what it may not hold raises `InvalidError` with field and value.

Used by the recorder for each run of tokens, and by whoever takes a whole trace from outside (`check_trace`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import InvalidError
from penstock.types import Float32Array, Int32Array, Mark, NamedArrays, Segment, Source, Trace, VersionRun

_LARGEST_ID = int(np.iinfo(np.int32).max)


def checked_ids(ids: npt.ArrayLike, where: str = "") -> Int32Array:
    """`ids` as an int32 array: one dimension, one token or more, none negative."""
    array = _as_array(ids, f"{where}ids")
    if array.ndim != 1 or array.size == 0:
        raise InvalidError(f"{where}ids must be a list of one token or more, got shape {array.shape}")
    if array.dtype.kind not in "iu":
        raise InvalidError(f"{where}ids must be integers, got {array.dtype}")
    smallest, largest = int(array.min()), int(array.max())
    if smallest < 0 or largest > _LARGEST_ID:
        raise InvalidError(f"{where}ids must lie in 0..{_LARGEST_ID}, got {smallest if smallest < 0 else largest}")
    return array.astype(np.int32, copy=False)


def checked_logprobs(logprobs: npt.ArrayLike, num_tokens: int, where: str = "") -> Float32Array:
    """`logprobs` as a float32 array: one per token, finite, 0 or less."""
    array = _as_array(logprobs, f"{where}logprobs")
    if array.shape != (num_tokens,):
        raise InvalidError(f"{where}logprobs must be one per token, got shape {array.shape} for {num_tokens} tokens")
    if array.dtype.kind not in "fiu":
        raise InvalidError(f"{where}logprobs must be numbers, got {array.dtype}")
    with np.errstate(over="ignore"):  # a value beyond float32 becomes infinite, and is refused as such
        narrow = array.astype(np.float32, copy=False)
    wrong = ~(np.isfinite(narrow) & (array <= 0))
    if wrong.any():
        first = int(wrong.argmax())
        raise InvalidError(f"{where}logprobs[{first}] must be finite and at most 0, got {array[first]}")
    return narrow


def check_versions(versions: Sequence[VersionRun], num_tokens: int, where: str = "") -> None:
    """Runs that count up to the tokens, each with a policy and a version."""
    for index, run in enumerate(versions):
        if run.count < 1:
            raise InvalidError(f"{where}versions[{index}].count must be 1 or more, got {run.count}")
        if run.version < 0:
            raise InvalidError(f"{where}versions[{index}].version must be 0 or more, got {run.version}")
        if not run.policy:
            raise InvalidError(f"{where}versions[{index}].policy is empty")
    total = sum(run.count for run in versions)
    if total != num_tokens:
        raise InvalidError(f"{where}versions must count up to {num_tokens} tokens, got {total}")


def checked_arrays(arrays: Mapping[str, npt.ArrayLike], num_tokens: int, where: str = "") -> dict[str, npt.NDArray[Any]]:
    """Named arrays of finite numbers or truth values whose first axis is the tokens."""
    checked = {}
    for name, values in arrays.items():
        array = _as_array(values, f"{where}arrays[{name!r}]")
        if array.ndim == 0 or len(array) != num_tokens:
            raise InvalidError(f"{where}arrays[{name!r}] must have one entry per token, got shape {array.shape} for {num_tokens} tokens")
        if array.dtype.kind not in "fiub":
            raise InvalidError(f"{where}arrays[{name!r}] must hold numbers, got {array.dtype}")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise InvalidError(f"{where}arrays[{name!r}] must be finite, got {array[~np.isfinite(array)][0]}")
        checked[name] = array
    return checked


def check_evidence(source: Source, has_logprobs: bool, has_versions: bool, where: str = "") -> None:
    """Sampled tokens say how likely they were and under which weights; injected ones may, if a scorer said so; others were never drawn."""
    if source is Source.SAMPLED and not (has_logprobs and has_versions):
        raise InvalidError(f"{where}{'versions' if has_logprobs else 'logprobs'} missing: sampled tokens need logprobs and versions")
    if source in (Source.TEMPLATE, Source.ENV) and (has_logprobs or has_versions):
        raise InvalidError(f"{where}{'logprobs' if has_logprobs else 'versions'} given for {source} tokens, which nobody sampled")
    if source is Source.INJECTED and has_versions and not has_logprobs:
        raise InvalidError(f"{where}versions given without logprobs: on injected tokens they name the weights that scored them")


def checked_number(value: float, field: str) -> float:
    """A finite number that is not a truth value."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)) or not math.isfinite(value):
        raise InvalidError(f"{field} must be a finite number, got {value!r}")
    return float(value)


def check_trace(trace: Trace, *, vocabulary_size: int | None = None) -> None:
    """Check a trace that came from outside as the recorder would have, and that its ids lie in the vocabulary, where that is known."""
    for index, segment in enumerate(trace.segments):
        _check_segment(index, segment, vocabulary_size)
    owners: dict[int, int] = {}
    for number, mark in enumerate(trace.marks):
        _check_mark(number, mark, trace.segments)
        for index in range(mark.start, mark.stop):
            if owners.setdefault(index, number) != number:
                raise InvalidError(f"marks[{number}] and marks[{owners[index]}] both hold segment {index}")


def _check_segment(index: int, segment: Segment, vocabulary_size: int | None) -> None:
    where = f"segments[{index}]."
    if segment.parent is not None and not 0 <= segment.parent < index:
        raise InvalidError(f"{where}parent must stand before the segment, got {segment.parent}")
    ids = checked_ids(segment.ids, where)
    if vocabulary_size is not None and int(ids.max()) >= vocabulary_size:
        raise InvalidError(f"{where}ids must lie below the vocabulary size {vocabulary_size}, got {int(ids.max())}")
    check_evidence(segment.source, segment.logprobs is not None, bool(segment.versions), where)
    if segment.logprobs is not None:
        checked_logprobs(segment.logprobs, len(ids), where)
    if segment.versions:
        check_versions(segment.versions, len(ids), where)
    checked_arrays(segment.arrays, len(ids), where)


def _check_mark(number: int, mark: Mark, segments: tuple[Segment, ...]) -> None:
    where = f"marks[{number}]."
    if not 0 <= mark.start <= mark.stop <= len(segments):
        raise InvalidError(f"{where}start and stop must lie in 0..{len(segments)} in order, got {mark.start} and {mark.stop}")
    for index in range(mark.start + 1, mark.stop):
        if segments[index].parent != index - 1:
            raise InvalidError(f"{where}segments must each continue the one before, but segment {index} continues {segments[index].parent}")
    if mark.reward is not None:
        checked_number(mark.reward, f"{where}reward")
    for name, value in mark.rewards.items():
        checked_number(value, f"{where}rewards[{name!r}]")


def same_layout(ours: NamedArrays, others: NamedArrays) -> bool:
    """Whether two sets of named arrays may be put one after the other without changing either."""
    return ours.keys() == others.keys() and all(ours[name].dtype == others[name].dtype and ours[name].shape[1:] == others[name].shape[1:] for name in ours)


def _as_array(values: npt.ArrayLike, field: str) -> npt.NDArray[Any]:
    try:
        return np.asarray(values)
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidError(f"{field} must be an array, got {values!r:.80}: {error}") from error
