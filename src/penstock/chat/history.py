"""Whether a template only ever adds to a conversation, found out once by trying it on small ones.

Each trial asks: is the prompt that a reply was generated from, followed by the reply, still the beginning of the conversation when new messages follow?
Trials vary what came before, what the reply holds (the words that the template itself looks for, above all), and what follows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from penstock.chat.messages import RESERVED
from penstock.chat.pieces import Rewrite
from penstock.chat.renderer import Renderer
from penstock.chat.vocabulary import ControlToken, Vocabulary
from penstock.errors import InvalidError
from penstock.types import Json, Message

PROBE = RESERVED[4]
"""Marks a place in a trial conversation; no message can hold it."""
THINKING = "<think>\nfirst\n</think>\n\nsecond"
_LOOSE_THINKING = "<think>first</think>second"
_PLAIN = "reply"
_PADDED = " reply \n"
_TOOL: Json = {
    "type": "function",
    "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}},
}
_USER = Message(role="user", content="question")
_SYSTEM = Message(role="system", content="rules")
_RESULT = Message(role="tool", content="result", name="look", tool_call_id="call00000")


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What a template does to the past."""

    end: ControlToken | None
    """What it puts right after a reply."""
    rewrites: Mapping[str, frozenset[Rewrite]]
    """By the role of a new message: how it makes the template rewrite what came before. Roles that it refuses are missing."""


def examine(render: Renderer, vocabulary: Vocabulary, cut_words: Sequence[str]) -> History:
    """Try the template. Raises `InvalidError` if it refuses even a user's question."""
    render([_USER])
    rewrites: dict[str, set[Rewrite]] = defaultdict(set)
    end = _end_of_reply(render, vocabulary)
    for opening, tools in _openings():
        for following in ([_USER], [_RESULT], [_RESULT, _RESULT], [_SYSTEM]):
            kinds = _tried(render, opening, tools, following, _replies(cut_words))
            if kinds is not None:
                rewrites[following[0].role] |= kinds | (set() if end else {Rewrite.NO_END})
    return History(end=end, rewrites={role: frozenset(kinds) for role, kinds in rewrites.items()})


def trials(cut_words: Sequence[str]) -> Iterator[tuple[list[Message], Json]]:
    """Conversations, without any control token in the texts of users and tools, that show all a template can do."""
    for opening, tools in _openings():
        yield opening, tools
        for reply in _replies(cut_words):
            for following in (_USER, _RESULT, _SYSTEM):
                yield [*opening, Message(role="assistant", content=reply), following], tools


def tool_call_turn(results: Sequence[Message], calls: Sequence[Json] = ()) -> Message:
    """An assistant's message with the calls that `results` answer, and `PROBE` among the arguments of the last."""
    shapes = list(calls) or [_call(result.name or "look", result.tool_call_id or f"call{index:05d}") for index, result in enumerate(results)]
    last = dict(shapes[-1])
    last["function"] = {**last.get("function", {}), "arguments": {"at": PROBE}}
    return Message(role="assistant", tool_calls=(*shapes[:-1], last))


def _openings() -> Iterator[tuple[list[Message], Json]]:
    plain = Message(role="assistant", content=_PLAIN)
    thinking = Message(role="assistant", content=THINKING)
    for tools in (None, [_TOOL]):
        yield [_USER], tools
        yield [_SYSTEM, _USER], tools
        yield [_USER, plain, _USER], tools
        yield [_USER, thinking, _USER], tools
        yield [_SYSTEM, _USER, thinking, _USER, plain, _USER], tools
        yield [_USER, thinking, _RESULT], tools


def _replies(cut_words: Sequence[str]) -> list[str]:
    return [_PLAIN, _PADDED, THINKING, _LOOSE_THINKING, *(f"first{word}second" for word in cut_words)]


def _tried(render: Renderer, opening: list[Message], tools: Json, following: list[Message], replies: Sequence[str]) -> set[Rewrite] | None:
    """How the template rewrites `opening` and a reply when `following` comes; None if it never takes such a conversation."""
    try:
        prompt = render(opening, tools)
    except InvalidError:
        return None
    kinds: set[Rewrite] = set()
    taken = False
    for reply in replies:
        try:
            whole = render([*opening, Message(role="assistant", content=reply), *following], tools)
        except InvalidError:
            continue
        taken = True
        if not whole.startswith(prompt + render.as_own(reply)):
            kinds.add(_kind(render, opening, tools, whole, prompt + render.as_own(reply), plain=reply == _PLAIN))
    return kinds if taken else _tried_with_calls(render, opening, tools, following, prompt)


def _tried_with_calls(render: Renderer, opening: list[Message], tools: Json, following: list[Message], prompt: str) -> set[Rewrite] | None:
    """The same for templates that take a tool's result only after a structured call; how a reply spells that call is not ours to check."""
    if following[0].role != "tool":
        return None
    try:
        whole = render([*opening, tool_call_turn(following), *following], tools)
    except InvalidError:
        return None
    return set() if whole.startswith(prompt) else {_kind(render, opening, tools, whole, prompt, plain=True)}


def _kind(render: Renderer, opening: list[Message], tools: Json, whole: str, expected: str, *, plain: bool) -> Rewrite:
    if "".join(whole.split()).startswith("".join(expected.split())):
        return Rewrite.TRIMS
    if not plain:
        return Rewrite.LAST_REPLY
    if any(message.content == THINKING for message in opening):
        return Rewrite.OLD_REPLIES
    before_prompt = render(opening, tools, add_generation_prompt=False)
    return Rewrite.PROMPT if whole.startswith(before_prompt) else Rewrite.FRONT


def _end_of_reply(render: Renderer, vocabulary: Vocabulary) -> ControlToken | None:
    try:
        text = render([_USER, Message(role="assistant", content=f"reply{PROBE}"), _USER])
    except InvalidError:
        return None
    place = text.find(PROBE)
    return vocabulary.mark_at(text, place + 1) if place >= 0 else None


def _call(name: str, call_id: str) -> Json:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": {}}}
