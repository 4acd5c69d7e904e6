"""Where a newly rendered conversation leaves tokens that are already known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.chat.pieces import Fork, Known, joined_ids
from penstock.chat.spans import Span, labelled
from penstock.chat.vocabulary import Encoded, Vocabulary
from penstock.types import Int32Array


def fork(vocabulary: Vocabulary, text: str, spans: Sequence[Span], known: Sequence[Known]) -> Fork:
    """Keep as many `known` tokens as spell the beginning of `text` (with marks), then go on with the tokenizer's own."""
    encoded = vocabulary.encode(text)
    num_kept, num_passed = _agreement(vocabulary, text, encoded, known)
    rest = Encoded(ids=encoded.ids[num_passed:], starts=encoded.starts[num_passed:], ends=encoded.ends[num_passed:])
    return Fork(keep=num_kept, pieces=labelled(rest, spans))


def _agreement(vocabulary: Vocabulary, text: str, encoded: Encoded, known: Sequence[Known]) -> tuple[int, int]:
    """How many known tokens agree with the text, and how many of the tokenizer's own tokens they stand for.

    Known pieces are compared by ids, and those that differ there by text. Kept and new tokens must meet where both have a border, so a piece that ends
    inside one of the tokenizer's tokens is kept only together with pieces behind it that reach a border. Inside a piece that differs, ids decide.
    """
    num_kept = num_passed = 0
    num_seen = position = 0
    for one in known:
        num_seen += len(one.ids)
        if num_seen - len(one.ids) == num_kept and np.array_equal(one.ids, encoded.ids[num_passed : num_passed + len(one.ids)]):
            num_kept, num_passed = num_seen, num_passed + len(one.ids)
            position = _start(encoded, text, num_passed)
            continue
        spelled = vocabulary.decode(one.ids)
        if not text.startswith(spelled, position):
            break
        position += len(spelled)
        met = int(np.searchsorted(encoded.starts, position, side="left"))
        if _start(encoded, text, met) == position and (met == 0 or encoded.ends[met - 1] <= position):
            num_kept, num_passed = num_seen, met
    same = _common_prefix(joined_ids(known)[num_kept:], encoded.ids[num_passed:])
    return num_kept + same, num_passed + same


def _start(encoded: Encoded, text: str, token: int) -> int:
    """The character at which that token starts."""
    return int(encoded.starts[token]) if token < len(encoded.starts) else len(text)


def _common_prefix(some: Int32Array, others: Int32Array) -> int:
    length = min(len(some), len(others))
    different = np.flatnonzero(some[:length] != others[:length])
    return int(different[0]) if len(different) else length
