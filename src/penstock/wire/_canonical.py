"""One spelling for each JSON value, and names for bytes."""

from __future__ import annotations

import msgspec
import xxhash

from penstock.errors import InvalidError
from penstock.types import Json
from penstock.wire._check import require_json
from penstock.wire._fault import Fault
from penstock.wire._strict import show


def canonical_json(value: Json) -> bytes:
    """The one spelling of a JSON value: keys sorted, no spaces. 1, 1.0 and True are spelled differently. Raises `InvalidError` for anything else.

    >>> canonical_json({"b": 1, "a": [1.0, True]})
    b'{"a":[1.0,true],"b":1}'
    """
    try:
        require_json(value, 0)
        return msgspec.json.encode(value, order="sorted")
    except Fault as fault:
        raise fault.as_error("value") from None
    except UnicodeEncodeError as error:
        raise InvalidError(f"value has a lone surrogate in {show(error.object)}") from None


def digest(data: bytes) -> str:
    """Name of some bytes: xxh3-128 in hex.

    >>> digest(b"")
    '99aa06d3014798d86001c324468d497f'
    """
    return xxhash.xxh3_128_hexdigest(data)


def checksum(data: bytes) -> int:
    """Tells flipped or torn bytes: xxh3-64.

    >>> hex(checksum(b""))
    '0x2d06800538d394c2'
    """
    return xxhash.xxh3_64_intdigest(data)
