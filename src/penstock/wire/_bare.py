"""Bodies of requests and replies, without an envelope, and several encoded nouns in one body."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeVar, cast

import msgspec

from penstock.errors import InvalidError, MalformedError
from penstock.wire._check import check_of
from penstock.wire._fault import Fault
from penstock.wire._fields import refuse_unknown_fields
from penstock.wire._strict import parse_json

Noun = TypeVar("Noun")
ContentType = Literal["json", "msgpack"]


def read_body(body: bytes, noun: type[Noun]) -> Noun:
    """A request or reply that is plain JSON in the form of a dataclass. As strict as `decode_json`."""
    plain = parse_json(body)
    refuse_unknown_fields(plain, noun, "body")
    try:
        value = msgspec.convert(plain, noun, strict=True)
        check = check_of(cast(Any, noun))
        if check is not None:
            check(value, 1)
    except msgspec.ValidationError as error:
        raise InvalidError(str(error).replace("`$", "`body")) from None
    except Fault as fault:
        raise fault.as_error("body") from None
    return value


def write_body(value: Any) -> bytes:
    """A request or reply, a dataclass, as plain JSON. Raises `InvalidError` for values that `read_body` would refuse."""
    check = check_of(cast(Any, type(value)))
    try:
        if check is not None:
            check(value, 1)
    except Fault as fault:
        raise fault.as_error("body") from None
    return msgspec.json.encode(value)


def split_items(body: bytes, content_type: ContentType, *, most: int | None = None) -> list[bytes]:
    """The encoded nouns in a body: a JSON array of them, or a msgpack array of byte strings that are one each. Of JSON, the first `most` and one more."""
    try:
        if content_type == "json":
            found = msgspec.json.decode(body, type=list[msgspec.Raw])
            return [bytes(item) for item in (found if most is None else found[: most + 1])]
        return msgspec.msgpack.decode(body, type=list[bytes])
    except (msgspec.DecodeError, RecursionError) as error:
        if content_type == "json":
            # It says what is wrong and where: a NaN is a wrong value, a cut off body is not JSON.
            parse_json(body)
        raise MalformedError(f"the body is not a {content_type} array of encoded items: {error}") from None


def items_head(count: int) -> bytes:
    """How `join_items` begins in msgpack, for `count` items that are sent one by one as they come to hand, each as `packed_item`."""
    return bytes((0x90 | count,)) if count < 16 else b"\xdd" + count.to_bytes(4, "big")


def packed_item(item: bytes) -> bytes:
    """One item of such a body."""
    return msgspec.msgpack.encode(item)


def join_items(items: Sequence[bytes], content_type: ContentType = "msgpack") -> bytes:
    """The inverse of `split_items`."""
    if content_type == "json":
        return b"[" + b",".join(items) + b"]"
    return msgspec.msgpack.encode(list(items))
