"""Every noun comes back exactly, whatever it holds, and no bytes at all make the decoders do anything but refuse."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from enum import Enum
from typing import Any, Literal, get_args, get_origin

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock.types
from penstock.errors import InputError
from penstock.types import Mark, Rollout, RolloutStatus, Segment, Snapshot, Source, Tally, Trace, VersionRun
from penstock.wire import canonical_json, decode_json, decode_msgpack, encode_json, encode_msgpack, parse_json

INSIDE_A_PROCESS = {Snapshot, Tally}
"""What the ledger holds in memory: keyed by tuples, and never sent."""
NOUNS = [noun for name in penstock.types.__all__ if dataclasses.is_dataclass(noun := getattr(penstock.types, name)) and noun not in INSIDE_A_PROCESS]

IDS = st.text("abcXYZ019_.:/@+=%~-", min_size=1, max_size=12).filter(lambda text: ".." not in text)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
INTS = st.integers(0, 2**63 - 1)
TEXTS = st.text(max_size=8)
JSONS = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | FLOATS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
DTYPES = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8"]


@st.composite
def arrays(draw: st.DrawFn, dtype: Any = None, length: int | None = None) -> np.ndarray[Any, Any]:
    """Any array of ours; with `length`, one that long along its first axis."""
    kind = np.dtype(draw(st.sampled_from(DTYPES)) if dtype is None else dtype)
    first = draw(st.integers(0, 4)) if length is None else length
    shape = (first, *draw(st.sampled_from([(), (), (2,), (0,), (2, 1)])))
    if kind.kind == "f":
        entries: st.SearchStrategy[Any] = st.floats(allow_nan=False, allow_infinity=False, width=kind.itemsize * 8)
    elif kind.kind == "b":
        entries = st.booleans()
    else:
        limits = np.iinfo(kind)
        # Small numbers and both ends, so that every stored width occurs.
        entries = st.integers(max(0, int(limits.min)), min(300, int(limits.max))) | st.integers(int(limits.min), int(limits.max))
    size = int(np.prod(shape))
    return np.array(draw(st.lists(entries, min_size=size, max_size=size)), kind).reshape(shape)


@st.composite
def segments(draw: st.DrawFn, parent: int | None) -> Segment:
    source = draw(st.sampled_from(Source))
    num_tokens = draw(st.integers(1, 5))
    ids = draw(st.lists(st.integers(0, 255) | st.integers(0, 65_535) | st.integers(0, 2**31 - 1), min_size=num_tokens, max_size=num_tokens))
    logprobs = draw(st.lists(st.floats(-(2.0**100), 0.0, width=32), min_size=num_tokens, max_size=num_tokens)) if source is Source.SAMPLED else None
    versions: list[VersionRun] = []
    while source is Source.SAMPLED and (left := num_tokens - sum(run.count for run in versions)):
        versions.append(dataclasses.replace(draw(values(VersionRun)), count=draw(st.integers(1, left))))
    return Segment(
        parent=parent,
        ids=np.array(ids, np.int32),
        source=source,
        logprobs=None if logprobs is None else np.array(logprobs, np.float32),
        versions=tuple(versions),
        arrays=draw(st.dictionaries(IDS, arrays(length=num_tokens), max_size=2)),
        media=tuple(draw(st.lists(st.text("0123456789abcdef", min_size=1, max_size=4), max_size=1))),
        abandoned=draw(st.none() | TEXTS),
    )


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    parents = draw(st.lists(st.booleans(), max_size=4))
    tree = tuple(draw(segments(index - 1 if index and chained else None)) for index, chained in enumerate(parents))
    marks = []
    for _ in range(draw(st.integers(0, 2))):
        start = draw(st.integers(max((mark.stop for mark in marks), default=0), len(tree)))
        marks.append(dataclasses.replace(draw(values(Mark)), start=start, stop=draw(st.integers(start, min(start + 1, len(tree))))))
    return Trace(segments=tree, marks=tuple(marks))


def values(hint: Any, name: str = "") -> st.SearchStrategy[Any]:
    """Values of a type that keep to the rules of the nouns."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return JSONS
    if hint is Trace:
        return traces()
    if hint is Segment:
        return segments(None)
    if hint is Rollout:
        return st.builds(_consistent, fields_of(Rollout), st.sampled_from(RolloutStatus), FLOATS)
    if hint is VersionRun:
        return st.builds(lambda run, count: dataclasses.replace(run, count=count), fields_of(VersionRun), st.integers(1, 9))
    if hint is str and "digest" in name:
        return st.text("0123456789abcdef", max_size=4)
    if hint is str:
        return IDS if name not in ("content", "message", "failure", "reason") else TEXTS
    if hint in (int, float, bool, bytes, type(None)):
        return {int: INTS, float: FLOATS, bool: st.booleans(), bytes: st.binary(max_size=9), type(None): st.none()}[hint]
    if origin in (typing.Union, types.UnionType):
        return st.one_of([values(member, name) for member in arguments])
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is np.ndarray:
        scalar = get_args(arguments[1])[0]
        return arrays(None if scalar is Any else scalar)
    if origin is tuple and arguments[-1] is not Ellipsis:
        return st.tuples(*(values(member, name) for member in arguments))
    if origin in (tuple, list):
        return st.lists(values(arguments[0], name), max_size=2).map(origin)
    if origin is Mapping:
        return st.dictionaries(IDS, values(arguments[1]), max_size=2)
    if issubclass(hint, Enum):
        return st.sampled_from(hint)
    return fields_of(hint)


def fields_of(noun: Any) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(noun)
    return st.builds(noun, **{field.name: values(hints[field.name], field.name) for field in dataclasses.fields(noun)})


def _consistent(rollout: Rollout, status: RolloutStatus, reward: float) -> Rollout:
    return dataclasses.replace(rollout, status=status, reward=reward if status.usable else None)


def same(one: Any, other: Any) -> bool:
    """Equal in value and type, all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if dataclasses.is_dataclass(one):
        return all(same(getattr(one, field.name), getattr(other, field.name)) for field in dataclasses.fields(one))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@pytest.mark.parametrize("noun", NOUNS, ids=lambda noun: noun.__name__)
def test_every_noun_comes_back_exactly_in_both_formats(noun: type) -> None:
    @settings(max_examples=15, deadline=None, derandomize=True)
    @given(values(noun))
    def comes_back(value: Any) -> None:
        text, binary = encode_json(value), encode_msgpack(value)
        assert same(decode_json(text, noun), value)
        assert same(decode_msgpack(binary, noun), value)
        # Written another way it is the same noun, so the looks that only foreign bodies get refuse nothing that is right.
        assert same(decode_json(json.dumps(json.loads(text), indent=1).encode(), noun), value)

    comes_back()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_damaged_bytes_are_refused_or_read_but_never_crash(data: st.DataObject) -> None:
    value = data.draw(values(Rollout))
    for encode, decode in ((encode_json, decode_json), (encode_msgpack, decode_msgpack)):
        body = bytearray(encode(value))
        for _ in range(data.draw(st.integers(1, 3))):
            at = data.draw(st.integers(0, len(body) - 1))
            body[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
        try:
            read = decode(bytes(body), Rollout)
        except InputError:
            continue
        encode(read)


def strict_reference(body: bytes) -> Any:
    """The slow and obvious strict parser: raises ValueError for what must be refused."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in pairs}) != len(pairs):
            raise ValueError("twice")
        return dict(pairs)

    def look(value: Any, depth: int) -> None:
        if isinstance(value, (dict, list)):
            if depth > 32:
                raise ValueError("deep")
            for child in [*value, *value.values()] if isinstance(value, dict) else value:
                look(child, depth + 1)
        elif isinstance(value, float) and (value != value or abs(value) == float("inf")):
            raise ValueError("not finite")
        elif type(value) is int and not -(2**63) <= value < 2**64:
            raise ValueError("wide")
        elif isinstance(value, str):
            value.encode()

    tree = json.loads(body.decode(), object_pairs_hook=unique)
    look(tree, 1)
    return tree


PIECES = st.sampled_from(
    [
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b'"a"',
        b'"b"',
        b'"\\""',
        b'":"',
        b'"\\\\"',
        b'"\\u0061"',
        b'"\\ud800"',
        b"1",
        b"-0.5",
        b"1e999",
        b"NaN",
        b"true",
        b"null",
        b" ",
        b"[" * 31,
        b"]" * 31,
    ]
)


@settings(max_examples=600, deadline=None, derandomize=True)
@given(
    st.lists(PIECES, max_size=12).map(b"".join)
    | st.recursive(
        PIECES,
        lambda inner: (
            st.lists(inner, max_size=3).map(lambda parts: b"[" + b",".join(parts) + b"]")
            | st.lists(st.tuples(st.sampled_from([b'"a"', b'"b"', b'"a" ', b'"\\u0061"', b'":\\""']), inner), max_size=3).map(
                lambda parts: b"{" + b",".join(key + b":" + value for key, value in parts) + b"}"
            )
        ),
        max_leaves=6,
    )
)
def test_strict_parsing_equals_the_slow_reference(body: bytes) -> None:
    try:
        expected = strict_reference(body)
    except ValueError:
        with pytest.raises(InputError):
            parse_json(body)
    else:
        assert same(parse_json(body), expected)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(JSONS)
def test_the_canonical_spelling_reads_back_as_the_value(value: Any) -> None:
    def in_order(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: in_order(value[key]) for key in sorted(value)}
        return [in_order(child) for child in value] if isinstance(value, list) else value

    assert same(parse_json(canonical_json(value)), in_order(value))
