"""Shapes of replies, from replies that are written out by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from penstock.inference.engine.requests import Choice, Finish
from penstock.inference.engine.sampling import Drawn, Randomness
from penstock.inference.protocol import Call, read_chat
from penstock.inference.replies import TokenTexts, chat_choice, completion_choice
from penstock.inference.streams import ChunkMaker

END = 257
CALL_TEXT = 'Wait. <tool_call>{"name": "look", "arguments": {"at": "map"}}</tool_call>'


def decode(ids: Sequence[int]) -> str:
    return bytes(id for id in ids if id < 256).decode("utf-8", "replace")


def call(**fields: Any) -> Call:
    return read_chat(json.dumps({"messages": [{"role": "user", "content": "hi"}]} | fields).encode()).call


def said(asked: Any, text: str, finish: Finish | None = Finish.STOP, stop_text: str | None = None) -> Choice:
    choice = Choice(asked([1]), 0, Randomness(0, 0))
    ids = list(text.encode()) + ([END] if finish is Finish.STOP and stop_text is None else [])
    for place, id in enumerate(ids):
        choice.sampled(Drawn(id, -0.5 - place, -1.0), "policy", 3 if place < 2 else 4)
    choice.finish, choice.stop_text = finish, stop_text
    return choice


def test_the_end_token_is_sampled_and_not_shown(asked: Any) -> None:
    shape = completion_choice(said(asked, "abc"), 0, call(return_token_ids=True, raw_logprobs=True), TokenTexts(decode))
    assert shape["text"] == "abc"
    assert shape["token_ids"] == [97, 98, 99, END]
    assert shape["raw_logprobs"] == [-1.0] * 4
    assert [(run["version"], run["count"], run["evidence"]) for run in shape["versions"]] == [(3, 2, "digest"), (4, 2, "digest")]


def test_the_text_ends_before_the_stop_text_and_names_it(asked: Any) -> None:
    shape = completion_choice(said(asked, "abc.", stop_text="c."), 0, call(), TokenTexts(decode))
    assert (shape["text"], shape["stop_reason"], shape["finish_reason"]) == ("ab", "c.", "stop")


def test_a_well_formed_call_is_taken_out_of_the_text(asked: Any) -> None:
    shape = chat_choice(said(asked, CALL_TEXT), 0, call(), TokenTexts(decode), has_tools=True, id="chatcmpl-7")
    assert shape["finish_reason"] == "tool_calls"
    assert shape["message"]["content"] == "Wait."
    (tool_call,) = shape["message"]["tool_calls"]
    assert tool_call["function"] == {"name": "look", "arguments": '{"at": "map"}'}


def test_without_tools_a_call_is_text(asked: Any) -> None:
    shape = chat_choice(said(asked, CALL_TEXT), 0, call(), TokenTexts(decode), has_tools=False, id="chatcmpl-7")
    assert (shape["finish_reason"], shape["message"]) == ("stop", {"role": "assistant", "content": CALL_TEXT})


def test_a_streamed_call_comes_whole_in_the_last_chunk(asked: Any) -> None:
    whole = said(asked, CALL_TEXT)
    growing = said(asked, "", finish=None)
    maker = ChunkMaker(call(return_token_ids=True), TokenTexts(decode), "chatcmpl-7", True, True)
    chunks = []
    for token in whole.drawn:
        growing.drawn.append(token)
        if len(growing.drawn) == len(whole.drawn):
            growing.finish, growing.versions = Finish.STOP, whole.versions
        chunks.append(maker.chunk(growing, 0))
    assert maker.chunk(growing, 0) is None
    assert chunks[0] is not None and chunks[0]["delta"] == {"role": "assistant"}
    assert all(chunk is not None and chunk["delta"] == {} and chunk["finish_reason"] is None for chunk in chunks[1:-1])
    last = chunks[-1]
    assert last is not None and last["finish_reason"] == "tool_calls" and last["delta"]["content"] == "Wait."
    assert [one["function"]["name"] for one in last["delta"]["tool_calls"]] == ["look"]
    assert [id for chunk in chunks if chunk for id in chunk["token_ids"]] == whole.ids
