"""Encoding and decoding of whole nouns, each in an envelope `{"schema": 1, "kind": "rollout", "value": {...}}`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, TypeVar, get_args

import msgspec
import numpy as np

from penstock.errors import InputError, InvalidError, PenstockError
from penstock.types import Mark, StepFacts, Trace
from penstock.types.fixed import OfFixedArrays
from penstock.wire import _arrays
from penstock.wire._check import check_of
from penstock.wire._fault import Fault
from penstock.wire._fields import refuse_unknown_fields
from penstock.wire._rules import check_vocabulary
from penstock.wire._strict import parse_json, parse_msgpack, refuse_wide_integers, show

Noun = TypeVar("Noun")

SCHEMA = 1
"""Number of the form described here. A change that older readers would misread gets the next one."""

_AROUND = {Trace: 2, Mark: 4, StepFacts: 5}
"""Objects and lists around a noun that travels inside a rollout; 1, the envelope, for all others. What is right alone is right there too."""


class _Format(NamedTuple):
    encode: Callable[..., bytes]
    encoder: Callable[..., Any]
    decode: Callable[..., Any]
    parse: Callable[[bytes], Any]
    to_array: Callable[[Any, np.dtype[Any] | None], _arrays.Array]
    plain_of: Callable[[Any], Any]
    """Of what an encoder does not know."""


def _plain_with(from_array: Callable[[_arrays.Array], Any]) -> Callable[[Any], Any]:
    """Makes plain what an encoder does not know, arrays by `from_array`."""

    def plain_of(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return from_array(value)
        if isinstance(value, np.generic):
            return value.item()
        raise Fault(f"holds a {type(value).__name__}, which has no form on the wire")

    return plain_of


_JSON = _Format(msgspec.json.encode, msgspec.json.Encoder, msgspec.json.decode, parse_json, _arrays.from_json, _plain_with(_arrays.to_json))
_MSGPACK = _Format(
    msgspec.msgpack.encode, msgspec.msgpack.Encoder, msgspec.msgpack.decode, parse_msgpack, _arrays.from_ext, OfFixedArrays(_plain_with(_arrays.to_ext))
)


@cache
def kind_of(noun: Any) -> str:
    """Name of a noun on the wire.

    >>> from penstock.types import GroupRecord
    >>> kind_of(GroupRecord)
    'group_record'
    """
    return re.sub(r"(?<!^)(?=[A-Z])", "_", noun.__name__).lower()


def encode_json(noun: object) -> bytes:
    """The noun as JSON, arrays as lists. Raises `InputError` for values that `decode_json` would refuse."""
    wanted: Any = type(noun)
    body = _encode(noun, _json_encoding(wanted))
    refuse_wide_integers(noun, body)
    return body


def encode_msgpack(noun: object, *, checked: bool = True) -> bytes:
    """The noun as msgpack, arrays as bytes. Raises `InputError` for values that `decode_msgpack` would refuse. The same noun gives the same bytes.

    Not `checked`: the caller has made it of values that were checked when they came, and makes thousands a second.
    """
    wanted: Any = type(noun)
    return _encode(noun, _msgpack_encoding(wanted), checked=checked)


def check_noun(noun: Any, *, vocabulary: int | None = None) -> None:
    """Raise `InputError` if the noun could not be sent, as the encoders do. For whoever makes one, to be refused before it is too late.

    `vocabulary`, if given, bounds the token ids of its segments.
    """
    wanted: Any = type(noun)
    try:
        _check(wanted, noun)
        if vocabulary is not None:
            check_vocabulary(noun, vocabulary)
        # For text that is not UTF-8 and integers that are too wide; arrays were looked at above.
        _trial.encode(noun)
    except (Fault, UnicodeEncodeError, OverflowError) as error:
        raise _author_error(kind_of(wanted), error) from None


def decode_json(body: bytes, noun: type[Noun], *, vocabulary: int | None = None) -> Noun:
    """The noun in `body`. `vocabulary`, if given, bounds the token ids of its segments.

    Raises `MalformedError` if the bytes are wrong, `InvalidError` if a value is; both name the place.
    """
    value: Noun = _decode(body, noun, vocabulary, _JSON)
    refuse_wide_integers(value, body)
    return value


def decode_msgpack(body: bytes, noun: type[Noun], *, vocabulary: int | None = None) -> Noun:
    """As `decode_json`, from msgpack."""
    value: Noun = _decode(body, noun, vocabulary, _MSGPACK)
    return value


@cache
def _envelope(noun: Any) -> Any:
    if not dataclasses.is_dataclass(noun):
        raise TypeError(f"{noun} is not a dataclass: it has no form on the wire")
    return msgspec.defstruct("Envelope", [("schema", int), ("kind", str), ("value", noun)], forbid_unknown_fields=True)


class _Encoding(NamedTuple):
    """What it takes to encode a noun in a format, worked out once."""

    kind: str
    check: Callable[[Any, int], None] | None
    around: int
    seal: Callable[[int, str, Any], Any]
    encode: Callable[[Any], bytes]


def _encode(noun: Any, encoding: _Encoding, *, checked: bool = True) -> bytes:
    kind, check, around, seal, encode = encoding
    try:
        if checked and check is not None:
            check(noun, around)
        return encode(seal(SCHEMA, kind, noun))
    except (Fault, UnicodeEncodeError, OverflowError) as error:
        raise _author_error(kind, error) from None


def _encoding(noun: Any, form: _Format) -> _Encoding:
    encoder = form.encoder(enc_hook=form.plain_of)
    return _Encoding(kind_of(noun), check_of(noun), _AROUND.get(noun, 1), _envelope(noun), encoder.encode)


@cache
def _json_encoding(noun: Any) -> _Encoding:
    return _encoding(noun, _JSON)


@cache
def _msgpack_encoding(noun: Any) -> _Encoding:
    return _encoding(noun, _MSGPACK)


def _author_error(kind: str, error: Fault | UnicodeEncodeError | OverflowError) -> InvalidError:
    if isinstance(error, Fault):
        return error.as_error(kind)
    if isinstance(error, UnicodeEncodeError):
        return InvalidError(f"{kind} has a lone surrogate in {show(error.object)}")
    return InvalidError(f"{kind} has an integer beyond 64 bits")


_trial = msgspec.msgpack.Encoder(enc_hook=_plain_with(lambda array: None))
"""Of nouns that nobody sends yet."""


def _check(noun: Any, value: Any) -> None:
    check = check_of(noun)
    if check is not None:
        check(value, _AROUND.get(noun, 1))


def _decode(body: bytes, noun: Any, vocabulary: int | None, form: _Format) -> Any:
    kind = kind_of(noun)
    arrays: list[Any] = []

    def to_array(hint: Any, plain: Any) -> _arrays.Array:
        arrays.append(plain)
        return form.to_array(plain, _dtype_of(hint))

    try:
        sealed = form.decode(body, type=_envelope(noun), dec_hook=to_array)
    except (ValueError, RecursionError, PenstockError) as error:
        raise _refusal(body, noun, form, error) from None
    if sealed.schema != SCHEMA or sealed.kind != kind:
        raise _wrong_envelope({"schema": sealed.schema, "kind": sealed.kind}, kind)
    # Bytes that come out again as they went in hold no key twice and no unknown one. So do most bodies: we wrote them. Others, hand-written or
    # with fields left out, are looked at key by key. Arrays come by in the same order both times, or the bytes differ anyway.
    unused = iter(arrays)
    if form.encode(sealed, enc_hook=lambda _: next(unused)) != body:
        refuse_unknown_fields(form.parse(body)["value"], noun, kind)
    try:
        _check(noun, sealed.value)
        if vocabulary is not None:
            check_vocabulary(sealed.value, vocabulary)
    except Fault as fault:
        raise fault.as_error(kind) from None
    return sealed.value


@cache
def _dtype_of(hint: Any) -> np.dtype[Any] | None:
    """The type that an annotation such as `npt.NDArray[np.int32]` names; None if it names none."""
    scalar = get_args(get_args(hint)[1])[0]
    return None if scalar is Any else np.dtype(scalar)


def _refusal(body: bytes, noun: Any, form: _Format, error: Exception) -> InputError:
    """Why `body` is refused, in the order in which a reader would ask: are the bytes right, is it this noun, which field is wrong."""
    kind = kind_of(noun)
    try:
        tree = form.parse(body)
    except InputError as malformed:
        return malformed
    if type(tree) is not dict or tree.keys() != {"schema", "kind", "value"} or type(tree["schema"]) is bool or (tree["schema"], tree["kind"]) != (SCHEMA, kind):
        return _wrong_envelope(tree, kind)
    message, _, path = str(error).partition(" - at `$")
    steps = re.findall(r"\.(\w+)|\[(\d+|\.\.\.)\]", path)
    for name, index in steps:
        if index == "..." or not isinstance(tree, (dict, list)):  # inside a mapping; the error does not say under which key
            break
        tree = tree[name] if name else tree[int(index)]
    where = path.rstrip("`").removeprefix(".value")
    return InvalidError(f"{kind}{where}: {message} (in {show(tree)})")


def _wrong_envelope(tree: Any, kind: str) -> InvalidError:
    if type(tree) is dict and tree.keys() >= {"schema", "kind"}:
        schema = tree["schema"]
        if type(schema) is not int or schema != SCHEMA:
            return InvalidError(
                f"{kind} has schema {show(schema)}; this penstock reads {SCHEMA}: use the penstock that wrote it, or write it again with schema {SCHEMA}"
            )
        if tree["kind"] != kind:
            return InvalidError(f"expected a {kind}, got a {show(tree['kind'])}")
    return InvalidError(f'{kind} must come as {{"schema": {SCHEMA}, "kind": "{kind}", "value": {{...}}}}, got {show(tree)}')
