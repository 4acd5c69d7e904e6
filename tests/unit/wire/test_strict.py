"""Bodies that must not pass, and why."""

from __future__ import annotations

import struct

import msgspec
import pytest

from penstock.errors import InputError, InvalidError, MalformedError
from penstock.types import Message, Problem
from penstock.wire import canonical_json, decode_msgpack, encode_msgpack, parse_json


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        (b"", MalformedError, "not JSON"),
        (b'{"a": 1', MalformedError, "not JSON"),
        (b'{"a": 1} x', MalformedError, "Extra data at character 9"),
        (b"[1,]", MalformedError, "not JSON"),
        (b"\xef\xbb\xbf{}", MalformedError, "not JSON"),
        (b'{"a": "\xff"}', MalformedError, "byte 7 of the body is not UTF-8"),
        (b'"\xed\xa0\x80"', MalformedError, "byte 1 of the body is not UTF-8"),
        (b'{"a": {"x": 1, "x": 1}}', MalformedError, "key 'x' stands twice in the object at $.a"),
        (b'{"a": 1, "\\u0061": 2}', MalformedError, "key 'a' stands twice"),
        (b'[{"a:b\\"": 1, "a:b\\"": 2}]', MalformedError, "stands twice in the object at $[0]"),
        (b'{"a":1,"a":"\\u003a"}', MalformedError, "key 'a' stands twice"),
        (b'{"a" :1,"a":":"}', MalformedError, "key 'a' stands twice"),
        (b'{"a":":","a":"\\":"}', MalformedError, "key 'a' stands twice"),
        (b'{"a\\\\":1,"a\\\\":2}', MalformedError, "stands twice"),
        (b"[" * 33 + b"]" * 33, MalformedError, "deeper than 32"),
        (b'{"a":' * 33 + b"1" + b"}" * 33, MalformedError, "deeper than 32"),
        (b"[" * 1_000_000, MalformedError, "deeper than 32"),
        (b'{"reward": NaN}', InvalidError, "$.reward must be a finite number, got nan"),
        (b'{"reward": -Infinity}', InvalidError, "$.reward must be a finite number, got -inf"),
        (b'{"a": [0, 1e999]}', InvalidError, "$.a[1] must be a finite number, got inf"),
        (b'{"a": 18446744073709551616}', InvalidError, "$.a must fit 64 bits, got 18446744073709551616"),
        (b"[" + b"1" * 5000 + b"]", InvalidError, "too many digits"),
        (b'{"a": "x\\ud800y"}', InvalidError, "$.a has a lone surrogate"),
        (b'{"\\udc00": 1}', InvalidError, "a key of $ has a lone surrogate"),
    ],
)
def test_a_bad_json_body_is_refused_with_its_place(body: bytes, kind: type[InputError], words: str) -> None:
    with pytest.raises(kind) as refused:
        parse_json(body)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b"[" * 32 + b"]" * 32, None),
        (b'{"a:b": "c:d{", "\\\\": {"\\"": ":"}}', {"a:b": "c:d{", "\\": {'"': ":"}}),
        (b'{"a":":)","b":"\\":","c\\"":[":"]}', {"a": ":)", "b": '":', 'c"': [":"]}),
        (b'"\\ud83d\\ude00"', "\U0001f600"),
        (b"18446744073709551615", 2**64 - 1),
        (b"-0.0", -0.0),
        (b'{"a": {"x": 1}, "b": {"x": 1}}', {"a": {"x": 1}, "b": {"x": 1}}),
    ],
)
def test_a_good_json_body_is_read_as_it_is(body: bytes, value: object) -> None:
    parsed = parse_json(body)
    assert value is None or (parsed == value and type(parsed) is type(value))


def test_canonical_json_tells_numbers_apart_and_keeps_one_order() -> None:
    assert canonical_json({"b": True, "a": [1, 1.0], "é": None}) == '{"a":[1,1.0],"b":true,"é":null}'.encode()
    assert len({canonical_json(value) for value in (1, 1.0, True, "1")}) == 4


@pytest.mark.parametrize("value", [float("nan"), float("inf"), (1, 2), {1: 2}, b"x", {"a": 2**64}, "\ud800"])
def test_what_is_not_json_has_no_canonical_spelling(value: object) -> None:
    with pytest.raises(InvalidError):
        canonical_json(value)


def _problem(metadata: bytes) -> bytes:
    """A problem whose metadata are the given msgpack bytes."""
    body = encode_msgpack(Problem(id="p", environment="e"))
    assert body.count(b"\xa8metadata\x80") == 1
    return body.replace(b"\xa8metadata\x80", b"\xa8metadata" + metadata)


@pytest.mark.parametrize(
    ("metadata", "kind", "words"),
    [
        (b"\x82\xa1a\x01\xa1a\x01", MalformedError, "key 'a' stands twice"),
        (b"\x82\xa1a\x01\xd9\x01a\x01", MalformedError, "key 'a' stands twice"),
        (b"\x81\xa1a" + b"\x91" * 40 + b"\x90", MalformedError, "deeper than 32"),
        (b"\x81\x01\x02", InputError, ""),
        (b"\x81\xa1\xff\x01", MalformedError, "not UTF-8"),
        (b"\x81\xa1a\xcb" + struct.pack(">d", float("nan")), InvalidError, "problem.metadata['a'] must be a finite number, got nan"),
        (b"\x81\xa1a\xca" + struct.pack(">f", float("inf")), InvalidError, "problem.metadata['a'] must be a finite number, got inf"),
        (b"\x81\xa1a\xc4\x01x", InvalidError, "problem.metadata['a'] must be a JSON value"),
        (b"\x81\xa1a\xd4\x05x", InvalidError, "problem.metadata['a'] must be a JSON value"),
        (b"\x81\xa1a\xd6\xff\x00\x00\x00\x00", InvalidError, "problem.metadata['a'] must be a JSON value"),
        (b"\x81\xa1a\xc1", MalformedError, "not msgpack"),
        (b"\x82\xa1a\x01", InputError, ""),
    ],
)
def test_a_bad_msgpack_body_is_refused_with_its_place(metadata: bytes, kind: type[InputError], words: str) -> None:
    with pytest.raises(kind) as refused:
        decode_msgpack(_problem(metadata), Problem)
    assert words in str(refused.value)


def test_msgpack_that_is_not_in_the_shortest_form_is_read() -> None:
    long_forms = b"\xde\x00\x03\xd9\x01a\xd1\x00\x05\xda\x00\x01b\xdc\x00\x01\xca" + struct.pack(">f", 0.5) + b"\xdb\x00\x00\x00\x01c\xdf\x00\x00\x00\x00"
    assert decode_msgpack(_problem(long_forms), Problem).metadata == {"a": 5, "b": [0.5], "c": {}}


def test_a_key_given_twice_to_a_noun_is_refused_in_both_formats() -> None:
    body = encode_msgpack(Message(role="user", content="x"))
    twice = body.replace(b"\x85\xa4role\xa4user", b"\x86\xa4role\xa4user\xa4role\xa4user")
    assert twice != body
    with pytest.raises(MalformedError, match="key 'role' stands twice"):
        decode_msgpack(twice, Message)


def test_a_body_with_trailing_bytes_is_refused() -> None:
    with pytest.raises(MalformedError, match="trailing"):
        decode_msgpack(encode_msgpack(Message(role="user")) + msgspec.msgpack.encode(1), Message)
