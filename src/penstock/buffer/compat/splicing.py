"""Items as a reader gets them: the bytes that were written, but for their reward.

A read of ten thousand groups spends its time here, so the common group is spelled anew as a whole, in a few calls that do not look at single items.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec

from penstock.buffer.compat import defaults

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encode = msgspec.json.Encoder().encode
_REWARD = re.compile(rb'"reward"\s*:\s*([^\s,}]+)')
_WORD = b'reward"'
"""Ends the key `"reward"`, and `"raw_reward"` too: where an item has the one and not the other it stands there once."""
_escaped = re.compile(rb"\\u00[5-7]").search
"""Letters and the underline of a key that is spelled with escapes."""
_BOOLEANS = {b"true": b"1", b"false": b"0"}
_is_boolean = re.compile(rb"\s*:\s*[tf]").match


def spliced(rewards: tuple[float | None, ...], refused: tuple[int, ...], group_size: int, bodies: Sequence[bytes]) -> bytes:
    """The items of a valid group as the default hooks shape them, with commas between. `bodies` are objects with a reward, by member."""
    keys = _new_keys(rewards, refused, group_size)
    whole = None if keys is None else _spliced_together(keys, bodies)
    if whole is not None:
        return whole
    shape = defaults.shape(rewards, refused, group_size, 0)
    assert not isinstance(shape, str), "the group was found to be valid when it was chosen"
    return b",".join([_spliced(bodies[place.member], place) for place in shape])


@lru_cache(maxsize=1024)
def _new_keys(rewards: tuple[float | None, ...], refused: tuple[int, ...], group_size: int) -> tuple[bytes, ...] | None:
    """What stands in the place of `_WORD` in each item, so that the old value becomes that of `raw_reward`. None if that is not all that changes.

    Groups of the same rewards are alike, and where rewards are 0 or 1 there are few of them.
    """
    shape = defaults.shape(rewards, refused, group_size, 0)
    if isinstance(shape, str) or len(shape) != len(rewards):
        return None
    if any(place.member != at or place.reward is None or place.raw_reward is None for at, place in enumerate(shape)):
        return None
    return tuple([b'reward":%b,"raw_reward"' % _encode(place.reward) for place in shape])


def _spliced_together(keys: Sequence[bytes], bodies: Sequence[bytes]) -> bytes | None:
    """All items at once; None if one of them needs a closer look."""
    whole = b",".join(bodies)
    pieces = whole.split(_WORD)
    # Every item has the key, so there are at least as many words as items. If there are no more, each is the end of one such key.
    if len(pieces) != len(keys) + 1 or _has_escaped_keys(whole):
        return None
    if any(map(_is_boolean, pieces)):
        return None
    parts = [b""] * (2 * len(keys) + 1)
    parts[0::2] = pieces
    parts[1::2] = keys
    return b"".join(parts)


def _has_escaped_keys(text: bytes) -> bool:
    """Whether a key may be there that cannot be found by its letters. Text in other scripts has escapes, too, but not these."""
    # One character is found in a tenth of the time that several take.
    return b"\\" in text and _escaped(text) is not None


def _spliced(body: bytes, place: defaults.Placed) -> bytes:
    """An item with the reward of its place; all other bytes as they were written."""
    found = _REWARD.search(body) if body.count(_WORD) == 1 and not _has_escaped_keys(body) else None
    if found is None:
        return _spliced_slowly(body, place)
    written = _BOOLEANS.get(found[1], found[1])
    head, tail = body[: found.start(1)], body[found.end(1) :]
    new = written if place.reward is None else _encode(place.reward)
    if place.raw_reward is None:
        return b"%b%b%b" % (head, new, tail)
    return b'%b%b,"raw_reward":%b%b' % (head, new, written, tail)


def _spliced_slowly(body: bytes, place: defaults.Placed) -> bytes:
    """The same for an item in which the word stands more than once, or is spelled in another way."""
    fields: dict[str, Any] = _fields.decode(body)
    written = bytes(fields["reward"])
    written = _BOOLEANS.get(written, written)
    fields["reward"] = msgspec.Raw(written if place.reward is None else _encode(place.reward))
    if place.raw_reward is not None:
        fields["raw_reward"] = msgspec.Raw(written)
    return _encode(fields)
