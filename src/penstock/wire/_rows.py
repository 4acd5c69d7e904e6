"""Plain values in a row, without their names: for a store that knows what stands where and keeps millions of them."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

import msgspec

from penstock.errors import InvalidError, InvariantError

Row = TypeVar("Row", bound=tuple[Any, ...])
_encoder = msgspec.msgpack.Encoder()


def encode_row(values: tuple[Any, ...]) -> bytes:
    """`values` as msgpack. Raises `InvalidError` for text or a number that cannot be written, `InvariantError` for what is no plain value."""
    try:
        return _encoder.encode(values)
    except (UnicodeEncodeError, OverflowError) as error:
        raise InvalidError(f"the row cannot be written: {error}") from None
    except TypeError as error:
        raise InvariantError(f"the row has a value that would not come back as it was: {error}") from None


def decode_row(body: bytes, form: type[Row]) -> Row:
    """The values of `form`, a tuple of plain types. Raises `InvalidError` if `body` holds others."""
    try:
        values: Row = _decoder(form).decode(body)
        return values
    except (ValueError, RecursionError) as error:
        raise InvalidError(f"the row is not what it should be: {error}") from None


@cache
def _decoder(form: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(form)
