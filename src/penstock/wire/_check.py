"""Looks at the values of a noun whose types are right: ids, finite numbers, JSON values, arrays, and the rules between fields.

The same look before a noun is encoded and after it was decoded. What to look at follows from the types of the fields and is worked out once for
each noun; fields that can hold nothing wrong cost nothing.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, get_args, get_origin

import numpy as np

from penstock.wire._arrays import MAX_AXES, NUMBERS, Array
from penstock.wire._fault import Fault
from penstock.wire._rules import COUNTS, DIGESTS, IDS, NAMED, RULES, require_digest, require_id
from penstock.wire._strict import MAX_DEPTH, fits_64_bits, show, too_deep

Check = Callable[[Any, int], None]
"""Raises `Fault` if the value is wrong. The number says how many objects and lists stand around the value."""


@cache
def check_of(hint: Any) -> Check | None:
    """The check of a type; None if all its values are right."""
    if hint is Any:
        return require_json
    if hint is float:
        return _require_finite
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _union(arguments)
    if origin is np.ndarray:
        return _array(get_args(arguments[1])[0])
    if origin is tuple and arguments[-1] is not Ellipsis:
        return _fixed(tuple(check_of(member) for member in arguments))
    if origin in (tuple, list):
        return _sequence(check_of(arguments[0]))
    if origin is Mapping:
        return _mapping(check_of(arguments[1]))
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _noun(hint)
    return None


def require_json(value: Any, around: int) -> None:
    """A JSON value: None, bool, int (64 bits), finite float, str, list, and dict with text as keys."""
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return
    if kind is float:
        _require_finite(value, around)
    elif kind is int:
        if not fits_64_bits(value):
            raise Fault(f"must fit 64 bits, got {show(value)}")
    elif kind is dict or kind is list:
        if around >= MAX_DEPTH:
            raise too_deep()
        for key, child in value.items() if kind is dict else enumerate(value):
            if kind is dict and type(key) is not str:
                raise Fault(f"must have text as keys, got {show(key)}")
            try:
                require_json(child, around + 1)
            except Fault as fault:
                raise fault.at(f"[{show(key)}]") from None
    else:
        raise Fault(f"must be a JSON value, got {show(value)}")


def _require_finite(value: Any, around: int) -> None:
    # A bool is an int to Python; it is never a number to us.
    if type(value) is not float and (isinstance(value, bool) or not isinstance(value, (int, float, np.floating, np.integer))):
        raise Fault(f"must be a number, got {show(value)}")
    if not math.isfinite(value):
        raise Fault(f"must be a finite number, got {value}")


def _require_id(value: Any, around: int) -> None:
    require_id(value)


def _require_digest(value: Any, around: int) -> None:
    require_digest(value)


def _require_count(value: Any, around: int) -> None:
    if value < 0:
        raise Fault(f"must be 0 or more, got {value}")


def _require_token_ids(value: Array, around: int) -> None:
    _array(np.int32)(value, around)
    if value.ndim != 1:
        raise Fault(f"must have one axis, got shape {value.shape}")
    if value.size and value.min() < 0:
        index = int(np.flatnonzero(value < 0)[0])
        raise Fault(f"must be a token id, 0 or more, got {value[index]}", f"[{index}]")


def _require_logprobs(value: Array, around: int) -> None:
    _require_dtype(value, np.dtype(np.float32))
    if value.ndim != 1:
        raise Fault(f"must have one axis, got shape {value.shape}")
    # NaN compares false with everything, so it fails the first test.
    if value.size and not (value.max() <= 0 and value.min() > -np.inf):
        index = int(np.flatnonzero(~((value <= 0) & np.isfinite(value)))[0])
        raise Fault(f"must be a finite logprob, at most 0, got {value[index]}", f"[{index}]")


def _require_dtype(value: Any, dtype: np.dtype[Any] | None) -> None:
    if not isinstance(value, np.ndarray) or (value.dtype != dtype if dtype is not None else value.dtype not in NUMBERS):
        got = value.dtype if isinstance(value, np.ndarray) else show(value)
        raise Fault(f"must be an array of {dtype.name if dtype is not None else 'booleans, integers or floats of up to 64 bits, little-endian'}, got {got}")
    if value.ndim > MAX_AXES:
        raise Fault(f"must have {MAX_AXES} axes or less, got {value.ndim}")


@cache
def _array(scalar: Any) -> Check:
    dtype = None if scalar is Any else np.dtype(scalar)

    def check(value: Any, around: int) -> None:
        _require_dtype(value, dtype)
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            index = int(np.flatnonzero(~np.isfinite(value))[0])
            raise Fault(f"must be finite, got {value.reshape(-1)[index]}", f"[{index}]")

    return check


def _union(members: tuple[Any, ...]) -> Check | None:
    """None, text and a tuple need telling apart; other unions do not occur in nouns."""
    checks = [(get_origin(member), found) for member in members if (found := check_of(member)) is not None]
    if not checks:
        return None
    if len(checks) > 1:
        raise TypeError(f"a union of {members} has no form on the wire")
    only_tuples, check_member = checks[0][0] is tuple, checks[0][1]

    def check(value: Any, around: int) -> None:
        if value is not None and (not only_tuples or type(value) is tuple):
            check_member(value, around)

    return check


def _sequence(member: Check | None) -> Check | None:
    if member is None:
        return None

    def check(values: Any, around: int) -> None:
        for index, value in enumerate(values):
            try:
                member(value, around + 1)
            except Fault as fault:
                raise fault.at(f"[{index}]") from None

    return check


def _fixed(members: tuple[Check | None, ...]) -> Check | None:
    if not any(members):
        return None

    def check(values: Any, around: int) -> None:
        for index, (member, value) in enumerate(zip(members, values, strict=True)):
            if member is not None:
                try:
                    member(value, around + 1)
                except Fault as fault:
                    raise fault.at(f"[{index}]") from None

    return check


def _mapping(member: Check | None, key: Check | None = None) -> Check | None:
    if member is None and key is None:
        return None

    def check(values: Any, around: int) -> None:
        for name, value in values.items():
            try:
                if key is not None:
                    key(name, around + 1)
                if member is not None:
                    member(value, around + 1)
            except Fault as fault:
                raise fault.at(f"[{show(name)}]") from None

    return check


def _field(noun: type, name: str, hint: Any) -> Check | None:
    """The check of a field, which may know more than its type says."""
    special: Check | None = None
    if name in IDS.get(noun, ()):
        special = _require_id
    elif name in COUNTS.get(noun, ()):
        special = _require_count
    elif name in DIGESTS and hint is str:
        special = _require_digest
    elif name in NAMED and get_origin(hint) is Mapping:
        special = _mapping(check_of(get_args(hint)[1]), _require_id)
    elif (noun.__name__, name) == ("Segment", "ids"):
        special = _require_token_ids
    elif (noun.__name__, name) == ("Segment", "logprobs"):
        special = _require_logprobs
    return special or check_of(hint)


def _empty_is_right(hint: Any, check: Check) -> bool:
    """Whether "", (), {} or 0 need no look. Most fields of most nouns are empty. An empty id is wrong, and an array is neither true nor false."""
    return check is _require_digest or check is _require_count or get_origin(hint) in (tuple, list, Mapping)


def _noun(noun: type) -> Check | None:
    hints = typing.get_type_hints(noun)
    found = ((field.name, _field(noun, field.name, hints[field.name])) for field in dataclasses.fields(noun))
    checks = tuple((name, check, _empty_is_right(hints[name], check)) for name, check in found if check is not None)
    rule = RULES.get(noun)
    return _fields(checks, rule) if checks or rule is not None else None


def _fields(checks: tuple[tuple[str, Check, bool], ...], rule: Callable[[Any], None] | None) -> Check:
    """The check of a noun by its fields, each with a name, a check and whether to pass over what is empty, and by the rule between them."""

    def check(value: Any, around: int) -> None:
        for name, check_field, skip_empty in checks:
            entry = getattr(value, name)
            if entry is None or (skip_empty and not entry):
                continue
            try:
                check_field(entry, around + 1)
            except Fault as fault:
                raise fault.at(f".{name}") from None
        if rule is not None:
            rule(value)

    return check


@cache
def json_check_of(hint: Any) -> Check | None:
    """The part of `check_of` that looks at JSON values, for nouns of which all else is known to be right; None if a type holds none."""
    if hint is Any:
        return require_json
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return next((found for member in arguments if (found := json_check_of(member)) is not None), None)
    if origin in (tuple, list):
        return _sequence(json_check_of(arguments[0]))
    if origin is Mapping:
        return _mapping(json_check_of(arguments[1]))
    if not (isinstance(hint, type) and dataclasses.is_dataclass(hint)):
        return None
    hints = typing.get_type_hints(hint)
    with_json = ((name, member, check) for name, member in hints.items() if (check := json_check_of(member)) is not None)
    checks = tuple((name, check, get_origin(member) in (tuple, list, Mapping)) for name, member, check in with_json)
    return _fields(checks, None) if checks else None
