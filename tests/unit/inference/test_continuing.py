from __future__ import annotations

import numpy as np

from penstock.inference.continuing import Origin, PartialReplies
from penstock.types import Int32Array


def ids(*values: int) -> Int32Array:
    return np.array(values, np.int32)


def reply(prompt: Int32Array, text: str, tokens: Int32Array) -> Origin:
    return Origin(prompt=prompt, text=text, ids=tokens)


def test_a_reply_grows_by_what_the_client_was_given() -> None:
    origin = reply(ids(9), "", ids()).grown("a\ufffd", ids(97, 195)).grown("\ufffd", ids(164))
    assert (origin.text, origin.ids.tolist(), origin.opened.tolist()) == ("a\ufffd\ufffd", [97, 195, 164], [9, 97, 195, 164])


def test_a_reply_is_found_by_its_prompt_and_its_whole_text() -> None:
    replies = PartialReplies()
    replies.keep(reply(ids(1, 2), "x", ids(5)))
    replies.keep(reply(ids(1, 3), "x", ids(6)))
    found = [replies.find(prompt, text) for prompt, text in [(ids(1, 2), "x"), (ids(1, 3), "x"), (ids(1, 2), "xx"), (ids(1), "x")]]
    assert [None if one is None else one.tolist() for one in found] == [[5], [6], None, None]


def test_the_oldest_replies_are_forgotten_first() -> None:
    replies = PartialReplies(max_tokens=5, max_replies=3)
    for number in range(3):
        replies.keep(reply(ids(number), "x", ids(7, 7)))
    assert [replies.find(ids(number), "x") is not None for number in range(3)] == [False, True, True]
    replies.keep(reply(ids(1), "x", ids(8)))
    for number in range(3, 5):
        replies.keep(reply(ids(number), "", ids()))
    assert [replies.find(ids(number), text) is not None for number, text in [(1, "x"), (2, "x"), (3, ""), (4, "")]] == [True, False, True, True]
