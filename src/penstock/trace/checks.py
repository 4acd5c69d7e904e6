"""What enters a trace. Values of any kind become the arrays of a segment here; whether they may stand in one is for `penstock.wire` to say.

There is one set of rules, that of what can be sent: the recorder applies it to each run of tokens, `check_trace` to a trace that came from outside.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import InvalidError
from penstock.types import Float32Array, Int32Array, NamedArrays, Trace
from penstock.wire import check_noun

_INT32, _FLOAT32 = np.dtype(np.int32), np.dtype(np.float32)
_LARGEST_ID, _LEAST_LOGPROB = int(np.iinfo(np.int32).max), float(np.finfo(np.float32).min)


def as_ids(ids: npt.ArrayLike) -> Int32Array:
    """`ids` as an int32 array that nobody else can change. Raises `InvalidError` if that would change a value."""
    # To ask where the least is takes a tenth of the time that it takes to ask for the least.
    if type(ids) is np.ndarray and ids.dtype == _INT32 and ids.ndim == 1 and ids.size and ids.item(ids.argmin()) >= 0:
        return _own(ids)
    array = _as_array(ids, "ids")
    if array.size == 0:
        return read_only(np.empty(array.shape, np.int32))
    if array.dtype.kind not in "iu":
        raise InvalidError(f"ids must be integers, got {array.dtype}")
    smallest, largest = int(array.min()), int(array.max())
    if smallest < 0 or largest > _LARGEST_ID:
        raise InvalidError(f"ids must lie in 0..{_LARGEST_ID}, got {smallest if smallest < 0 else largest}")
    return read_only(array.astype(np.int32, copy=False))


def as_logprobs(logprobs: npt.ArrayLike) -> Float32Array:
    """`logprobs` as a float32 array that nobody else can change. What is right only after rounding is refused."""
    if type(logprobs) is np.ndarray and logprobs.dtype == _FLOAT32 and logprobs.ndim == 1 and logprobs.size and _are_usual(logprobs):
        return _own(logprobs)
    array = _as_array(logprobs, "logprobs")
    if array.dtype.kind not in "fiu":
        raise InvalidError(f"logprobs must be numbers, got {array.dtype}")
    with np.errstate(over="ignore"):  # a value beyond float32 becomes infinite, and is refused as such
        narrow = array.astype(np.float32, copy=False)
    wrong = ~(np.isfinite(narrow) & (array <= 0))
    if array.ndim == 1 and wrong.any():
        first = int(wrong.argmax())
        raise InvalidError(f"logprobs[{first}] must be finite and at most 0, got {array[first]}")
    return read_only(narrow)


def as_arrays(arrays: Mapping[str, npt.ArrayLike]) -> dict[str, npt.NDArray[Any]]:
    """Named arrays that nobody else can change."""
    return {name: read_only(_as_array(values, f"arrays[{name!r}]")) for name, values in arrays.items()}


def checked_number(value: float, field: str) -> float:
    """A finite number that is not a truth value."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)) or not math.isfinite(value):
        raise InvalidError(f"{field} must be a finite number, got {value!r}")
    return float(value)


def check_trace(trace: Trace, *, vocabulary_size: int | None = None) -> None:
    """Check a trace that came from outside as the recorder would have, and that its ids lie in the vocabulary, where that is known."""
    check_noun(trace, vocabulary=vocabulary_size)


def same_layout(ours: NamedArrays, others: NamedArrays) -> bool:
    """Whether two sets of named arrays may be put one after the other without changing either."""
    return ours.keys() == others.keys() and all(ours[name].dtype == others[name].dtype and ours[name].shape[1:] == others[name].shape[1:] for name in ours)


def read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array, closed for writing."""
    array.setflags(write=False)
    return array


def _are_usual(logprobs: Float32Array) -> bool:
    # NaN is found as the largest and as the least, and compares false with everything.
    return logprobs.item(logprobs.argmax()) <= 0 and logprobs.item(logprobs.argmin()) >= _LEAST_LOGPROB


def _own(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """An array that nobody else can change: the same, if it was made for that and closed for writing."""
    return read_only(array.copy()) if array.flags.writeable or array.base is not None else array


def _as_array(values: npt.ArrayLike, field: str) -> npt.NDArray[Any]:
    """An array of its own. Of what is not a list or tuple one cannot tell whether numpy took its memory or copied it."""
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        raise InvalidError(f"{field} must be an array, got {values!r:.80}: {error}") from error
    return array if isinstance(values, (list, tuple)) else array.copy()
