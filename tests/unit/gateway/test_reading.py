"""Requests that go on from the one before are read by what they add, and as if they were read whole."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InputError
from penstock.gateway.reading import Reader
from penstock.gateway.requests import read_ask
from penstock.gateway.spelling import Speller

CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": "]"}'}}
texts = st.sampled_from(["", "a", "]", "}],", '"messages": [', "[", "\\", 'say "hi"', "ü", "\n"])
messages = st.one_of(
    st.builds(lambda text: {"role": "user", "content": text}, texts),
    st.builds(lambda text: {"role": "user", "content": [{"type": "text", "text": text}]}, texts),
    st.builds(lambda text: {"content": text, "role": "assistant", "tool_calls": [CALL]}, texts),
)
before_fields = st.sampled_from(
    [{}, {"model": "m"}, {"tools": [{"messages": []}]}, {"stop": ["[]"], "metadata": {"messages": [{"role": "user", "content": "a"}]}}]
)
after_fields = st.sampled_from([{}, {"n": 2}, {"metadata": {"messages": [[]]}}, {"max_tokens": 3, "user": "}"}])
spellings = st.sampled_from([{}, {"indent": 1}, {"separators": (",", ":")}, {"ensure_ascii": False}])


def spelled(said: list[Any], before: dict[str, Any], after: dict[str, Any], spelling: dict[str, Any]) -> bytes:
    return json.dumps({**before, "messages": said, **after}, **spelling).encode()


@given(
    said=st.lists(messages, min_size=1, max_size=8),
    steps=st.lists(st.tuples(st.integers(0, 8), st.booleans()), min_size=1, max_size=5),
    before=before_fields,
    after=after_fields,
    spelling=spellings,
)
def test_whatever_was_read_before_a_request_reads_the_same(said: list[Any], steps: list[tuple[int, bool]], before: Any, after: Any, spelling: Any) -> None:
    reader = Reader()
    for length, is_edited in steps:
        # An edited history has the same length, so that only what it says tells it from the one before.
        history = [{"role": "user", "content": "!"} if is_edited else {"role": "user", "content": "?"}, *said[: max(1, length)]]
        body = spelled(history, before, after, spelling)
        assert reader.read(body, {}) == read_ask(body, {})


@pytest.mark.parametrize(
    "tail",
    [
        b",]}",
        b',,{"role":"user","content":"b"}]}',
        b'{"role":"user","content":"b"}]}',
        b',{"role":"user"',
        b'],"messages":[]}',
        b",7]}",
        b'],"n":0}',
        b"]",
        b',{"role":1}]}',
        b"\xff]}",
    ],
)
def test_what_is_wrong_behind_known_messages_is_refused_as_if_it_were_read_whole(tail: bytes) -> None:
    start = b'{"messages":[{"role":"user","content":"a"}'
    reader = Reader()
    reader.read(start + b"]}", {})
    with pytest.raises(InputError) as expected:
        read_ask(start + tail, {})
    with pytest.raises(InputError) as found:
        reader.read(start + tail, {})
    assert (type(found.value), str(found.value)) == (type(expected.value), str(expected.value))
    # And what was known is not spoiled by it.
    good = start + b',{"role":"user","content":"b"}]}'
    assert reader.read(good, {}) == read_ask(good, {})


@pytest.mark.parametrize("other", [b'"stop":["x"', b'"":["x"', b'"metadata":[[]', b'"n":2,"stop":[', b'"messages":[{"role":"user","content":"c"}'])
def test_a_field_that_ends_as_the_request_before_did_is_not_taken_for_messages(other: bytes) -> None:
    start = b'{"messages":[{"role":"user","content":"a"}'
    body = start + b',{"role":"user","content":"b"}],' + other + b"]}"
    reader = Reader()
    reader.read(start + b"]}", {})
    try:
        expected: Any = read_ask(body, {})
    except InputError as error:
        expected = str(error)
    try:
        found: Any = reader.read(body, {})
    except InputError as error:
        found = str(error)
    assert found == expected


def test_messages_that_were_read_before_are_not_made_anew() -> None:
    reader = Reader()
    first = reader.read(spelled([{"role": "user", "content": "a"}], {}, {"n": 1}, {}), {})
    again = reader.read(spelled([{"role": "user", "content": "a"}], {}, {"n": 1}, {}), {})
    longer = reader.read(spelled([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}], {}, {"n": 1}, {}), {})
    assert first.messages[0] is again.messages[0] is longer.messages[0]


@given(st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=6), min_size=1, max_size=6), st.booleans())
def test_prompts_are_spelled_as_json_whatever_came_before(parts: list[list[int]], grows: bool) -> None:
    speller = Speller()
    ids = np.zeros(0, np.int32)
    for part in parts:
        made_of = [ids, np.array(part, np.int32)] if grows else [np.array(part, np.int32)]
        ids = np.concatenate(made_of)
        assert json.loads(b"[%b]" % speller.spell(ids, made_of)) == ids.tolist()
