from __future__ import annotations

import pytest

from penstock.chat import parse_tool_calls


def test_calls_come_out_in_order_and_the_rest_stays() -> None:
    text = 'First.\n<tool_call>\n{"name": "look", "arguments": {"at": "é"}}\n</tool_call>\n<tool_call>{"name": "go", "arguments": {}}</tool_call>'
    parsed = parse_tool_calls(text, id_prefix="turn3")
    assert parsed.content == "First."
    assert parsed.tool_calls == (
        {"id": "turn3_0", "type": "function", "function": {"name": "look", "arguments": '{"at": "é"}'}},
        {"id": "turn3_1", "type": "function", "function": {"name": "go", "arguments": "{}"}},
    )


@pytest.mark.parametrize(
    "body",
    [
        "",
        "look",
        "[]",
        '{"name": "look"}',
        '{"name": "", "arguments": {}}',
        '{"name": 3, "arguments": {}}',
        '{"name": "look", "arguments": "{}"}',
        '{"name": "look", "arguments": {}, "more": 1}',
        '{"name": "look", "name": "go", "arguments": {}}',
        '{"name": "look", "arguments": {"x": NaN}}',
        '{"name": "look", "arguments": {}} and',
        '{"name": "look", "arguments": ' + "[" * 100_000,
    ],
)
def test_a_malformed_call_stays_text(body: str) -> None:
    text = f" a <tool_call>{body}</tool_call> b "
    assert parse_tool_calls(text).content == text
    assert parse_tool_calls(text).tool_calls == ()


def test_an_open_call_stays_text() -> None:
    text = '<tool_call>{"name": "look", "arguments": {}}'
    assert parse_tool_calls(text).content == text


def test_a_malformed_call_does_not_hide_a_good_one() -> None:
    parsed = parse_tool_calls('<tool_call>no</tool_call><tool_call>{"name": "go", "arguments": {}}</tool_call>')
    assert parsed.content == "<tool_call>no</tool_call>"
    assert [call["function"]["name"] for call in parsed.tool_calls] == ["go"]
