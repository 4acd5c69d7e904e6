from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.errors import BadRequestError, InputError
from penstock.inference.protocol import read_chat, read_completion

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [("a", ["a"]), ([1, 2], [[1, 2]]), (["a", "b"], ["a", "b"]), ([[1], [2, 3]], [[1], [2, 3]]), (["a", [1]], ["a", [1]])],
)
def test_prompts_are_text_ids_or_lists_of_either(prompt: Any, expected: Any) -> None:
    prompts = read_completion(body(prompt=prompt)).prompts
    assert [one if isinstance(one, str) else one.tolist() for one in prompts] == expected


@pytest.mark.parametrize("prompt", [None, [], {}, 3, [1, "a"], [True], [[1], [1.5]], [-1], [2**31], [[[1]]]])
def test_other_prompts_are_refused(prompt: Any) -> None:
    with pytest.raises(BadRequestError) as refusal:
        read_completion(body(prompt=prompt))
    assert refusal.value.field == "prompt"
    assert refusal.value.http_status == 400


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 0),
        ("n", "3"),
        ("n", 1e9),
        ("n", True),
        ("max_tokens", -1),
        ("max_tokens", 0),
        ("max_tokens", 1.5),
        ("temperature", -0.1),
        ("temperature", 0.001),
        ("temperature", 1000),
        ("temperature", "hot"),
        ("temperature", True),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("seed", 1.5),
        ("stop", ""),
        ("stop", ["a"] * 17),
        ("stop", [1]),
        ("stop", "x" * 257),
        ("stop_token_ids", ["a"]),
        ("logprobs", 21),
        ("logprobs", -1),
        ("stream", "yes"),
        ("return_token_ids", 1),
        ("model", 5),
        ("request_id", "a b"),
        ("best_of", 3),
        ("echo", True),
        ("presence_penalty", 0.5),
        ("logit_bias", {"5": 1}),
        ("min_p", 0.1),
        ("response_format", {"type": "json_object"}),
        ("tool_choice", "required"),
    ],
)
def test_a_wrong_field_is_named(field: str, value: Any) -> None:
    with pytest.raises(BadRequestError, match=field) as refusal:
        read_completion(body(prompt="a")[:-1] + b", " + body(**{field: value})[1:])
    assert refusal.value.field == field


@pytest.mark.parametrize("text", ["", "[]", "5", "{", '{"prompt": "a", "temperature": NaN}', '{"prompt": "a", "temperature": 1e999}', '{"prompt": "\\ud800"}'])
def test_what_is_not_strict_json_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        read_completion(text.encode())


def test_fields_we_do_not_know_and_nulls_are_let_through() -> None:
    call = read_completion(body(prompt="a", user="me", metadata={}, temperature=None, stop=None, logprobs=None, presence_penalty=0.0)).call
    assert (call.temperature, call.stop_texts, call.wants_logprobs, call.max_tokens) == (1.0, (), False, 16)


def test_a_chat_is_read() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    asked = read_chat(
        body(messages=[{"role": "user", "content": parts}, {"role": "assistant", "content": None}], logprobs=True, top_logprobs=2, max_completion_tokens=9)
    )
    assert [message.content for message in asked.messages] == ["ab", ""]
    assert (asked.call.wants_logprobs, asked.call.num_alternatives, asked.call.max_tokens) == (True, 2, 9)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"messages": []},
        {"messages": "hi"},
        {"messages": ["hi"]},
        {"messages": [{"content": "no role"}]},
        {"messages": [{"role": "user", "content": 5}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        {"messages": [{"role": "assistant", "tool_calls": "x"}]},
        CHAT | {"top_logprobs": 2},
        CHAT | {"tools": "x"},
        CHAT | {"logprobs": 1},
    ],
)
def test_other_chats_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(BadRequestError):
        read_chat(body(**fields))
