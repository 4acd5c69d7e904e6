"""Many encoded rollouts at a glance: which of them `decode_msgpack` would certainly take, each as a view of its bytes.

A buffer gets thousands of rollouts a second, nearly all of them right and spelled by our own encoder. Of such a one the noun is never made. msgspec
reads it into a *shape*: the fields of the noun under the same names, with the bounds of ids, counts and floats built into their types, and arrays as the
bytes they are. The rules between fields are those of `_rules`; the numbers of all arrays are looked at together.

Whatever is not proven right here is left to `decode_msgpack`, which knows what is wrong with it and where. So nothing here may be more lenient.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cache
from operator import attrgetter
from typing import Annotated, Any, Literal, cast, get_args, get_origin

import msgspec
import numpy as np
from msgspec.msgpack import Ext

from penstock.errors import PenstockError
from penstock.types import Rollout, Segment, Trace, VersionRun
from penstock.wire._arrays import ARRAY_EXTENSION, NUMBERS, Array, from_ext
from penstock.wire._check import check_of, json_check_of
from penstock.wire._envelope import SCHEMA, kind_of
from penstock.wire._fault import Fault
from penstock.wire._rules import COUNTS, DIGEST_PATTERN, DIGESTS, ID_PATTERN, IDS, NAMED, RULES

_LARGEST_FLOAT = float(np.finfo(np.float64).max)
_IDS = re.compile(rf"{ID_PATTERN}(?:\n{ID_PATTERN})*")
_ID = Annotated[str, msgspec.Meta(pattern=rf"\A(?!.*\.\.){ID_PATTERN}\Z")]
_DIGEST = Annotated[str, msgspec.Meta(pattern=rf"\A{DIGEST_PATTERN}\Z")]
_COUNT = Annotated[int, msgspec.Meta(ge=0)]
_FINITE = Annotated[float, msgspec.Meta(ge=-_LARGEST_FLOAT, le=_LARGEST_FLOAT)]
"""Every comparison with a NaN fails, so it is refused as well."""
_POSITIVE = Annotated[int, msgspec.Meta(ge=1)]

_LOOKED_AT = frozenset((Rollout, Trace, Segment, VersionRun))
"""Nouns whose rule is applied here, or built into the shape."""
_SCALARS = frozenset((str, int, bool, type(None)))


def _head(stored: str, given: str) -> bytes:
    """How the bytes of an array with one axis begin."""
    return bytes((NUMBERS[np.dtype(stored)], NUMBERS[np.dtype(given)], 1))


_ID_TYPES = {_head(stored, "<i4"): np.dtype(stored) for stored in ("u1", "<u2", "<i4")}
_LOGPROB_TYPES = {_head("<f4", "<f4"): np.dtype("<f4")}
_HEAD_BYTES = 3
_frombuffer: Any = np.frombuffer


def view_rollouts(bodies: Sequence[bytes]) -> list[Rollout | None]:
    """For each body the rollout in it, or None if only `decode_msgpack` can say whether there is one.

    What is given has every field of a `Rollout`, to be read only: ids are views of the body in the width in which they are stored, and the
    objects are not of the classes of the nouns. Where it is given, `decode_msgpack` gives an equal one.
    """
    heap = _Heap()
    views = [_view(body, heap) for body in bodies]
    if heap.is_right() or not bodies:
        return views
    if len(bodies) == 1:
        return [None]
    # One that is wrong must not keep the others from being seen: now each is looked at alone.
    return [view for body in bodies for view in view_rollouts([body])]


class _Heap:
    """Values of many rollouts that are looked at together: one look at ten thousand numbers costs little more than one at a hundred."""

    __slots__ = ("again", "ids", "logprobs", "texts")

    def __init__(self) -> None:
        self.again = bytearray()
        """Where each of them is encoded again."""
        self.ids: list[Array] = []
        """Token ids that are stored with a sign."""
        self.logprobs: list[Array] = []
        self.texts: set[str] = set()
        """Ids of things. Most of a batch have their run, their environment and their group in common."""

    def is_right(self) -> bool:
        """Whether all of them may be where they were found."""
        lines = "\n".join(self.texts)
        if self.texts and (_IDS.fullmatch(lines) is None or ".." in lines or lines.count("\n") != len(self.texts) - 1):
            return False
        if self.ids and np.concatenate(self.ids).min() < 0:
            return False
        if not self.logprobs:
            return True
        logprobs = np.concatenate(self.logprobs)
        # NaN compares false with everything.
        return bool(logprobs.max() <= 0 and logprobs.min() > -np.inf)


def _view(body: bytes, heap: _Heap) -> Rollout | None:
    """The rollout in `body`, if it is right once what was put on the heap is; None if it is wrong or spelled in another way than ours."""
    try:
        sealed = _decoder.decode(body)
        # Bytes that come out again as they went in hold no key twice.
        _encoder.encode_into(sealed, heap.again)
        if heap.again != body:
            return None
        rollout = sealed.value
        heap.texts.update(_ids_of(rollout))
        for segment in rollout.trace.segments:
            _view_segment(segment, heap)
        _check_trace(rollout.trace)
        _check_rollout(rollout)
        _require_json_values(rollout, 1)
    except (Fault, PenstockError, ValueError, RecursionError):
        return None
    return cast(Rollout, rollout)


def _view_segment(segment: Any, heap: _Heap) -> None:
    """Put arrays in the place of their bytes. Raises `Fault` if the segment is not as it should be."""
    segment.ids = ids = _array(segment.ids, _ID_TYPES)
    logprobs = segment.logprobs
    if logprobs is not None:
        segment.logprobs = logprobs = _array(logprobs, _LOGPROB_TYPES)
    if segment.arrays:
        segment.arrays = {name: from_ext(array, None) for name, array in segment.arrays.items()}
        _require_arrays(segment.arrays, 0)
    _check_segment(segment)
    # Only now: what is on the heap is not empty.
    if ids.itemsize == 4:
        heap.ids.append(ids)
    if logprobs is not None:
        heap.logprobs.append(logprobs)
    for run in segment.versions:
        heap.texts.add(run.policy)


def _array(ext: Ext, dtypes: Mapping[bytes, np.dtype[Any]]) -> Array:
    data: Any = ext.data
    dtype = dtypes.get(data[:_HEAD_BYTES])
    if dtype is None or ext.code != ARRAY_EXTENSION:
        raise Fault("is not an array of the type that is expected")
    found: Array = _frombuffer(data, dtype, -1, _HEAD_BYTES)
    return found


@cache
def _shape_of(hint: Any) -> Any:
    """The type to read a `hint` into. Raises `TypeError` for one of which nothing is known here: it must not pass unseen."""
    if hint is Any or hint in _SCALARS or (isinstance(hint, type) and issubclass(hint, Enum)):
        return hint
    if hint is float:
        return _FINITE
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is np.ndarray:
        return Ext
    if origin in (typing.Union, types.UnionType):
        return typing.Union[tuple(_shape_of(member) for member in arguments)]  # noqa: UP007 - made of values
    if origin is tuple and arguments[-1] is Ellipsis:
        return tuple[_shape_of(arguments[0]), ...]  # type: ignore[misc]
    if origin is Mapping:
        return dict[str, _shape_of(arguments[1])]  # type: ignore[misc]
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _shape_of_noun(hint)
    raise TypeError(f"{hint} has no shape")


def _shape_of_noun(noun: Any) -> type[msgspec.Struct]:
    if noun in RULES and noun not in _LOOKED_AT:
        raise TypeError(f"the rule of {noun} is not applied to shapes")
    hints = typing.get_type_hints(noun)
    fields: list[tuple[str, Any, Any]] = []
    for field in dataclasses.fields(noun):
        shape = _shape_of_field(noun, field.name, hints[field.name])
        # The encoder writes every field, so whatever leaves one out is spelled otherwise and not looked at here.
        fields.append((field.name, shape, msgspec.NODEFAULT))
    # Shapes hold no cycles: the collector need not look at them.
    return msgspec.defstruct(noun.__name__, fields, kw_only=True, forbid_unknown_fields=True, gc=False)


def _shape_of_field(noun: type, name: str, hint: Any) -> Any:
    """As `check_of` knows more of a field than its type says."""
    if name in IDS.get(noun, ()):
        if noun not in (Rollout, VersionRun):
            raise TypeError(f"nobody looks at the id {name} of a {noun}")
        return str
    if name in COUNTS.get(noun, ()):
        return _COUNT
    if (noun, name) == (VersionRun, "count"):
        return _POSITIVE
    if name in DIGESTS and hint is str:
        return _DIGEST
    if name in NAMED and get_origin(hint) is Mapping:
        return dict[_ID, _shape_of(get_args(hint)[1])]  # type: ignore[misc]
    return _shape_of(hint)


_ENVELOPE = msgspec.defstruct(
    "Envelope",
    [("schema", Literal[SCHEMA]), ("kind", Literal[kind_of(Rollout)]), ("value", _shape_of(Rollout))],
    forbid_unknown_fields=True,
    gc=False,
)
_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(_ENVELOPE)
_encoder = msgspec.msgpack.Encoder()
_check_segment, _check_trace, _check_rollout = RULES[Segment], RULES[Trace], RULES[Rollout]
_ids_of = attrgetter(*sorted(IDS[Rollout]))
_require_json_values = cast(Any, json_check_of(Rollout))
_require_arrays = cast(Any, check_of(Mapping[str, np.ndarray[Any, np.dtype[Any]]]))
