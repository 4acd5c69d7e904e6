"""Decoding by looking up bytes gives what the tokenizer's own decoder gives."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from penstock.chat import write_byte_tokenizer
from penstock.chat.token_bytes import TokenBytes, has_byte_tokens


@cache
def tokenizer() -> Tokenizer:
    """Bytes, pairs of them as longer words have, and control tokens."""
    with tempfile.TemporaryDirectory() as directory:
        write_byte_tokenizer(Path(directory))
        spelled = json.loads((Path(directory) / "tokenizer.json").read_text())
    vocab = spelled["model"]["vocab"]
    ends = {number: text for text, number in vocab.items()}
    for number, (first, second) in enumerate([(0xC3, 0xA4), (0xF0, 0x9F), (0x20, 0x61), (0x80, 0xC3)]):
        vocab[ends[first] + ends[second]] = 512 + number
        spelled["model"]["merges"].append([ends[first], ends[second]])
    assert has_byte_tokens(spelled)
    return Tokenizer.from_str(json.dumps(spelled))


@given(st.lists(st.one_of(st.integers(0, 520), st.sampled_from([0xC3, 0xA4, 0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0x98, 0x80, 0xED, 0xA0, 512, 515])), max_size=12))
def test_looked_up_bytes_are_the_text_that_the_tokenizer_gives(ids: list[int]) -> None:
    known = TokenBytes(tokenizer(), without=300)
    ids = [one for one in ids if one != 300]
    expected = tokenizer().decode(ids, skip_special_tokens=False)
    for _ in range(2):  # the second time all are remembered
        assert known.decode(ids) == expected


def test_ids_that_nobody_knows_and_the_one_that_is_left_out_give_nothing() -> None:
    known = TokenBytes(tokenizer(), without=ord("b"))
    assert known.decode([*b"abc", -1, 10_000, 2**40]) == "ac"
    assert 10_000 not in known._known


@pytest.mark.parametrize(
    ("decoder", "expected"),
    [
        ({"type": "ByteLevel"}, True),
        ({"type": "Sequence", "decoders": [{"type": "ByteLevel"}]}, True),
        ({"type": "Sequence", "decoders": [{"type": "ByteLevel"}, {"type": "Strip"}]}, False),
        ({"type": "Metaspace"}, False),
        (None, False),
    ],
)
def test_only_byte_level_decoders_are_looked_up(decoder: dict[str, object] | None, expected: bool) -> None:
    assert has_byte_tokens({"decoder": decoder}) is expected
