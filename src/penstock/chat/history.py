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
_PLAIN_TURN = Message(role="assistant", content=_PLAIN)
_THINKING_TURN = Message(role="assistant", content=THINKING)
# All different: some templates find the last question by its value.
_USER = Message(role="user", content="question")
_SECOND_USER = Message(role="user", content="second question")
_THIRD_USER = Message(role="user", content="third question")
_LAST_USER = Message(role="user", content="last question")
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
    for following in ([_LAST_USER], [_RESULT], [_RESULT, _RESULT], [_SYSTEM]):
        for opening, tools in _openings():
            kinds = _tried(render, opening, tools, following, _replies(cut_words))
            if kinds is not None:
                rewrites[following[0].role] |= kinds | _shape_of_addition(render, vocabulary, tools, opening, following)
    behind_reply = _behind_reply(render, [_USER], None, [_LAST_USER])
    end = vocabulary.mark_at(behind_reply, 0) if behind_reply else None
    return History(end=end, rewrites={role: frozenset(kinds) for role, kinds in rewrites.items()})


def trials(cut_words: Sequence[str]) -> Iterator[tuple[list[Message], Json]]:
    """Conversations, without any control token in the texts of users and tools, that show all a template can do."""
    for opening, tools in _openings():
        yield opening, tools
        for reply in _replies(cut_words):
            for following in (_LAST_USER, _RESULT, _SYSTEM):
                yield [*opening, Message(role="assistant", content=reply), following], tools


def keeps_reply(whole: str, prompt: str, reply: str) -> bool:
    """Whether a rendered conversation begins with `prompt` and `reply`, white space of the reply aside."""
    return whole.startswith(prompt) and "".join(whole[len(prompt) :].split()).startswith("".join(reply.split()))


def tool_call_turn(results: Sequence[Message], calls: Sequence[Json] = ()) -> Message:
    """An assistant's message with the calls that `results` answer, and `PROBE` among the arguments of the last."""
    shapes = list(calls) or [_call(result.name or "look", result.tool_call_id or f"call{index:05d}") for index, result in enumerate(results)]
    last = dict(shapes[-1])
    last["function"] = {**last.get("function", {}), "arguments": {"at": PROBE}}
    return Message(role="assistant", tool_calls=(*shapes[:-1], last))


def _openings() -> Iterator[tuple[list[Message], Json]]:
    yield [_USER], None
    yield [_SYSTEM, _USER], None
    yield [_USER, _PLAIN_TURN, _SECOND_USER], None
    yield [_USER, _THINKING_TURN, _SECOND_USER], None
    yield [_SYSTEM, _USER, _THINKING_TURN, _SECOND_USER, _PLAIN_TURN, _THIRD_USER], None
    yield [_USER, _THINKING_TURN, _RESULT], None
    yield [_USER], [_TOOL]
    yield [_SYSTEM, _USER, _PLAIN_TURN, _SECOND_USER], [_TOOL]


def _replies(cut_words: Sequence[str]) -> list[str]:
    return [_PLAIN, _PADDED, THINKING, _LOOSE_THINKING, *(f"first{word}second" for word in cut_words)]


def _tried(render: Renderer, opening: list[Message], tools: Json, following: list[Message], replies: Sequence[str]) -> set[Rewrite] | None:
    """How the template rewrites `opening` and a reply when `following` comes; None if it never takes such a conversation."""
    taken = False
    kinds: set[Rewrite] = set()
    for reply in replies:
        change = _change(render, opening, tools, reply, following)
        if change is None:
            continue
        taken = True
        kinds |= change
        if change & {Rewrite.FRONT, Rewrite.PROMPT, Rewrite.OLD_REPLIES}:
            # The reply is not what this hangs on; other replies would tell nothing new.
            break
    return kinds if taken else _change_with_calls(render, opening, tools, following)


def _change(render: Renderer, opening: list[Message], tools: Json, reply: str, following: list[Message]) -> set[Rewrite] | None:
    """How a conversation is rewritten that goes on after `reply`; None if the template refuses it."""
    try:
        prompt = render(opening, tools)
        whole = render([*opening, Message(role="assistant", content=reply), *following], tools)
    except InvalidError:
        return None
    if whole.startswith(prompt + render.as_own(reply)):
        return set()
    if keeps_reply(whole, prompt, render.as_own(reply)):
        return {Rewrite.TRIMS}
    if reply != _PLAIN:
        return {Rewrite.LAST_REPLY}
    without_thinking = [_PLAIN_TURN if message is _THINKING_TURN else message for message in opening]
    if without_thinking != opening:
        return _change(render, without_thinking, tools, reply, following) or {Rewrite.OLD_REPLIES}
    before_prompt = render(opening, tools, add_generation_prompt=False)
    return {Rewrite.PROMPT if whole.startswith(before_prompt) else Rewrite.FRONT}


def _change_with_calls(render: Renderer, opening: list[Message], tools: Json, following: list[Message]) -> set[Rewrite] | None:
    """The same for templates that take a tool's result only after a structured call; how a reply spells that call is not ours to check."""
    if following[0].role != "tool":
        return None
    try:
        prompt = render(opening, tools)
        whole = render([*opening, tool_call_turn(following), *following], tools)
    except InvalidError:
        return None
    return set() if whole.startswith(prompt) else {Rewrite.FRONT}


def _shape_of_addition(render: Renderer, vocabulary: Vocabulary, tools: Json, opening: list[Message], following: list[Message]) -> set[Rewrite]:
    """Whether what is added behind a reply starts with an end token, and is the same as behind the first reply of all."""
    behind = _behind_reply(render, opening, tools, following)
    if behind is None:
        return set()
    first = _behind_reply(render, [_USER], tools, following)
    no_end = vocabulary.mark_at(behind, 0) is None
    return ({Rewrite.NO_END} if no_end else set()) | ({Rewrite.PLACE} if first is not None and first != behind else set())


def _behind_reply(render: Renderer, opening: list[Message], tools: Json, following: list[Message]) -> str | None:
    """What stands behind a reply to `opening` when `following` comes; None if the template refuses or drops it."""
    try:
        text = render([*opening, Message(role="assistant", content=f"reply{PROBE}"), *following], tools)
    except InvalidError:
        return None
    _, found, behind = text.partition(PROBE)
    return behind if found else None


def _call(name: str, call_id: str) -> Json:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": {}}}
