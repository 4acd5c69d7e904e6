"""Numpy arrays on the wire.

JSON: a plain list for one axis of int32, float32 or bool; otherwise, and when empty, `{"dtype": "float64", "shape": [2, 3], "data": [...]}`, where
shape is left out for one axis.

msgpack: extension 1. One byte for the type of the stored numbers, one for the type to give back, one for the number of axes, then for other than
one axis their lengths as uint32, then the numbers, all little-endian. Integers are stored in the narrowest of uint8, uint16 and int32 that holds them.
"""

from __future__ import annotations

import struct
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec.msgpack import Ext

from penstock.wire._fault import Fault
from penstock.wire._strict import show

Array = npt.NDArray[Any]

ARRAY_EXTENSION = 1
MAX_AXES = 8
_INT32, _FLOAT32, _BOOL = np.dtype(np.int32), np.dtype(np.float32), np.dtype(np.bool_)
_DTYPES = tuple(np.dtype(name) for name in ("?", "i1", "u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8"))
"""The place of a type in this tuple is its number in stored bytes: append only."""
NUMBERS = {dtype: number for number, dtype in enumerate(_DTYPES)}
"""Every type that an array may have."""
_NAMES = {dtype.name: dtype for dtype in _DTYPES}
_NARROW = (np.dtype("u1"), np.dtype("<u2"), np.dtype("<i4"))
_NARROWER = {
    dtype: {
        narrow: (int(np.iinfo(narrow).min), int(np.iinfo(narrow).max)) for narrow in _NARROW if narrow.itemsize < dtype.itemsize and np.can_cast(narrow, dtype)
    }
    for dtype in _DTYPES
}
"""For each type the narrower ones that its numbers may be stored in, with the smallest and largest that fit."""
_INT32_AS_UINT8, _INT32_AS_UINT16, _INT32_AS_IT_IS = (bytes((NUMBERS[stored], NUMBERS[_INT32], 1)) for stored in _NARROW)
_FLOAT32_AS_IT_IS = bytes((NUMBERS[_FLOAT32], NUMBERS[_FLOAT32], 1))
_FEW = 256
_ELEMENTS = {"b": frozenset((bool,)), "i": frozenset((int,)), "u": frozenset((int,)), "f": frozenset((int, float))}
_WORDS = {"b": "true or false", "i": "an integer", "u": "an integer", "f": "a number"}


def to_ext(array: Array) -> Ext:
    """The array in the msgpack form."""
    dtype = array.dtype
    if array.ndim == 1:  # token ids and their logprobs, as most are
        if dtype is _INT32 and 0 < array.size <= _FEW:
            return Ext(ARRAY_EXTENSION, _few(array))
        if dtype is _FLOAT32:
            return Ext(ARRAY_EXTENSION, _FLOAT32_AS_IT_IS + array.tobytes())
    stored = _narrowest(array) if dtype.kind in "iu" and array.size else dtype
    header = bytes((NUMBERS[stored], NUMBERS[dtype], array.ndim))
    if array.ndim != 1:
        header += struct.pack(f"<{array.ndim}I", *array.shape)
    return Ext(ARRAY_EXTENSION, header + (array if stored is dtype else array.astype(stored)).tobytes())


def _few(array: Array) -> bytes:
    """The bytes of not too many token ids, the same as of many. Each step of numpy costs more than it takes to pick them out of the memory."""
    raw, zeros = array.tobytes(), bytes(array.size)
    if raw[3::4] != zeros or raw[2::4] != zeros:
        return _INT32_AS_IT_IS + raw
    if raw[1::4] == zeros:
        return _INT32_AS_UINT8 + raw[::4]
    return _INT32_AS_UINT16 + array.astype(_NARROW[1]).tobytes()


def _narrowest(array: Array) -> np.dtype[Any]:
    if array.dtype is _INT32:
        # Read as unsigned, what is negative is larger than all that fits: one look in place of two.
        largest = np.maximum.reduce(array.view(np.uint32), axis=None)
        return _NARROW[0] if largest < 1 << 8 else _NARROW[1] if largest < 1 << 16 else _INT32
    low, high = int(array.min()), int(array.max())
    for narrow, (least, most) in _NARROWER[array.dtype].items():
        if least <= low and high <= most:
            return narrow
    return array.dtype


def from_ext(value: Any, dtype: np.dtype[Any] | None) -> Array:
    """The array that an extension holds, of type `dtype` if one is given. Raises `Fault`."""
    if type(value) is not Ext or value.code != ARRAY_EXTENSION:
        raise Fault(f"must be an array (extension {ARRAY_EXTENSION}), got {show(value)}")
    data = memoryview(value.data)
    try:
        stored, given, num_axes = _DTYPES[data[0]], _DTYPES[data[1]], data[2]
        shape = (-1,) if num_axes == 1 else struct.unpack_from(f"<{num_axes}I", data, 3)
        numbers = np.frombuffer(data[3 if num_axes == 1 else 3 + 4 * num_axes :], stored)
    except (IndexError, ValueError, struct.error):
        raise Fault(f"must be an array, got {len(data)} bytes that are none") from None
    if stored is not given and stored not in _NARROWER[given]:
        raise Fault(f"must be an array, got {given.name} stored as {stored.name}")
    if dtype is not None and given != dtype:
        raise Fault(f"must be an array of {dtype.name}, got {given.name}")
    # A copy, so that the array is aligned and does not hold on to the whole body.
    return _shaped(numbers.astype(given), shape)


def to_json(array: Array) -> Any:
    """The array in the JSON form."""
    if array.ndim == 1 and array.size and array.dtype in (_INT32, _FLOAT32, _BOOL):
        return array.tolist()
    shape = {} if array.ndim == 1 else {"shape": list(array.shape)}
    return {"dtype": array.dtype.name, **shape, "data": array.reshape(-1).tolist()}


def from_json(value: Any, dtype: np.dtype[Any] | None) -> Array:
    """The array that a list or object spells, of type `dtype` if one is given. Raises `Fault`."""
    if type(value) is list:
        return _from_list(value, dtype or _dtype_of(value))
    if type(value) is not dict or type(value.get("data")) is not list or not value.keys() <= {"dtype", "shape", "data"}:
        raise Fault(f"must be a list, or an object with dtype and data, got {show(value)}")
    name, shape = value.get("dtype"), value.get("shape", [-1])
    given = _NAMES.get(name) if type(name) is str else None
    if given is None or (dtype is not None and given != dtype):
        raise Fault(f"must have the dtype {dtype.name if dtype is not None else f'of one of {sorted(_NAMES)}'}, got {show(name)}")
    if "shape" in value and (type(shape) is not list or any(type(length) is not int or length < 0 for length in shape)):
        raise Fault(f"must have a list of lengths as shape, got {show(shape)}")
    return _shaped(_from_list(value["data"], given), tuple(shape))


def _dtype_of(values: list[Any]) -> np.dtype[Any]:
    kinds = set(map(type, values))
    if not kinds:
        raise Fault('must say its type when it is empty, as in {"dtype": "float32", "data": []}')
    return _BOOL if kinds == {bool} else _INT32 if kinds == {int} else _FLOAT32


def _from_list(values: list[Any], dtype: np.dtype[Any]) -> Array:
    allowed = _ELEMENTS[dtype.kind]
    if not allowed.issuperset(map(type, values)):
        index = next(index for index, value in enumerate(values) if type(value) not in allowed)
        raise Fault(f"must be {_WORDS[dtype.kind]} in every place, got {show(values[index])} in place {index}")
    try:
        if dtype.kind != "f":
            return np.array(values, dtype)
        # A number that is too large for the type becomes infinite here; what is not finite is refused later, wherever it came from.
        with np.errstate(over="ignore"):
            return np.array(values, dtype)
    except OverflowError:
        raise Fault(f"must fit {dtype.name} in every place, got {show(min(values))} to {show(max(values))}") from None


def _shaped(numbers: Array, shape: tuple[int, ...]) -> Array:
    if shape == (-1,):
        return numbers
    if len(shape) > MAX_AXES or prod(shape) != numbers.size:
        raise Fault(f"must have as many numbers as its shape {show(shape)} says, got {numbers.size}")
    return numbers.reshape(shape)
