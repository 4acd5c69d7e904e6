"""Rendering by what is added gives the same ids as transformers' rendering of everything, whatever was said."""

from __future__ import annotations

import functools
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from penstock.chat import BUILTIN_TEMPLATES, ChatTemplate, Piece, write_byte_tokenizer
from penstock.types import Message, Source

STYLES = Path(__file__).parents[1] / "data" / "templates"
FOREIGN = tuple(sorted(path.name for path in STYLES.iterdir()))
ALL = (*BUILTIN_TEMPLATES, *FOREIGN)
REWRITING = {"chatml_think", "qwen3_style", "mistral_style", "forced_thinking_style", "traveling_system_style", "open_ended_style"}
NO_SYSTEM = {"gemma_style"}
NO_TOOLS = {"gemma_style", "mistral_style", "traveling_system_style"}
SPACE_FIRST = {"mistral_style"}
"""The model itself writes the space that the history shows in front of a reply."""


@functools.cache
def directory(style: str) -> Path:
    if style in FOREIGN:
        return STYLES / style
    made = Path(tempfile.mkdtemp())
    write_byte_tokenizer(made, style)
    return made


@functools.cache
def ours(style: str) -> ChatTemplate:
    return ChatTemplate.load(directory(style))


@functools.cache
def theirs(style: str) -> Any:
    return AutoTokenizer.from_pretrained(directory(style))


def their_text(style: str, messages: list[Message], *, prompt: bool = True) -> str:
    plain = [{"role": message.role, "content": message.content} for message in messages]
    return theirs(style).apply_chat_template(plain, tokenize=False, add_generation_prompt=prompt, date_string="26 Jul 2024")


def their_ids(style: str, text: str) -> list[int]:
    return theirs(style)(text, add_special_tokens=False)["input_ids"]


def ids_of(known: list[Piece]) -> list[int]:
    return [number for piece in known for number in piece.ids.tolist()]


def kept(known: list[Piece], keep: int) -> list[Piece]:
    """The first `keep` tokens of the known pieces."""
    result: list[Piece] = []
    for piece in known:
        ids = piece.ids[:keep]
        keep -= len(ids)
        if len(ids):
            result.append(Piece(ids=ids, source=piece.source, message_index=piece.message_index))
    return result


WORDS = st.lists(
    st.sampled_from(["the", "answer", "is", "42", "<", "|>", "naïve", "東京", "😀", "\n", "  ", "</", "[", "]", "it's", "{}", "\t", "!\n"]), max_size=8
)
TEXT = st.one_of(
    WORDS.map(" ".join), WORDS.map("".join), st.text(st.characters(codec="utf-8", exclude_characters="\ufdd0\ufdd1\ufdd2\ufdd3\ufdd4"), max_size=12)
)
ANSWER = TEXT.map(lambda text: text.strip() or "yes")


@dataclass(frozen=True)
class Exchange:
    reply: str
    truncated: bool
    new: list[Message]


@st.composite
def replies(draw: st.DrawFn, style: str) -> str:
    answer = draw(ANSWER)
    if style in SPACE_FIRST:
        return " " + answer
    if draw(st.booleans()):
        return answer
    opening = "" if style == "forced_thinking_style" else "<think>\n"
    return f"{opening}{draw(ANSWER)}\n</think>\n\n{answer}"


@st.composite
def conversations(draw: st.DrawFn, style: str) -> tuple[list[Message], list[Exchange]]:
    opening = [Message(role="user", content=draw(TEXT))]
    if style not in NO_SYSTEM and draw(st.booleans()):
        opening.insert(0, Message(role="system", content=draw(TEXT)))
    exchanges = []
    for _ in range(draw(st.integers(1, 4))):
        if style not in NO_TOOLS and draw(st.booleans()):
            new = [Message(role="tool", content=text) for text in draw(st.lists(TEXT, min_size=1, max_size=3))]
        else:
            new = [Message(role="user", content=draw(TEXT))]
        exchanges.append(Exchange(reply=draw(replies(style)), truncated=draw(st.booleans()), new=new))
    return opening, exchanges


def sampled(style: str, messages: list[Message], exchange: Exchange) -> np.ndarray[Any, np.dtype[np.int32]]:
    """The reply as a model would sample it that cuts up text as the tokenizer does."""
    prompt = their_text(style, messages)
    prompt_ids, with_reply = their_ids(style, prompt), their_ids(style, prompt + exchange.reply)
    assume(with_reply[: len(prompt_ids)] == prompt_ids)
    end = [] if exchange.truncated else [ours(style).eos_ids[0]]
    return np.array(with_reply[len(prompt_ids) :] + end, np.int32)


@pytest.mark.parametrize("style", ALL)
def test_a_conversation_grows_into_what_transformers_renders_at_once(style: str) -> None:
    template = ours(style)
    assert template.rewrites_history == (style in REWRITING)

    @settings(max_examples=25, deadline=None, database=None, derandomize=True)
    @given(conversations(style))
    def grows(conversation: tuple[list[Message], list[Exchange]]) -> None:
        messages, exchanges = conversation
        known = list(template.open(messages).pieces)
        assert ids_of(known) == their_ids(style, their_text(style, messages))
        for exchange in exchanges:
            known.append(Piece(ids=sampled(style, messages, exchange), source=Source.SAMPLED))
            reply = Message(role="assistant", content=template.split_reply(known[-1].ids).text)
            assert reply.content == exchange.reply
            messages = [*messages, reply, *exchange.new]
            fork = template.extend(messages, known, len(exchange.new))
            if style not in REWRITING:
                assert fork.keep == len(ids_of(known))
            known = [*kept(known, fork.keep), *fork.pieces]
            assert ids_of(known) == their_ids(style, their_text(style, messages))

    grows()


@pytest.mark.parametrize("style", ALL)
def test_pieces_of_a_conversation_spell_its_messages(style: str) -> None:
    template = ours(style)

    @settings(max_examples=25, deadline=None, database=None, derandomize=True)
    @given(conversations(style))
    def spells(conversation: tuple[list[Message], list[Exchange]]) -> None:
        messages, _ = conversation
        rendered = template.open(messages)
        for index, message in enumerate(messages):
            own = [piece for piece in rendered.pieces if piece.message_index == index]
            assert all(piece.source is Source.ENV for piece in own)
            assert message.content.strip() in "".join(template.decode(piece.ids) for piece in own) or style == "traveling_system_style"

    spells()


@pytest.mark.parametrize("style", ALL)
def test_a_spelled_control_token_is_text_wherever_it_stands(style: str) -> None:
    template = ours(style)
    control = {token.content: number for number, token in theirs(style).added_tokens_decoder.items() if token.special or "turn>" in token.content}
    fragments = st.lists(st.one_of(st.sampled_from(sorted(control)), ANSWER), min_size=1, max_size=5).map("".join)

    @settings(max_examples=25, deadline=None, database=None, derandomize=True)
    @given(fragments)
    def is_text(content: str) -> None:
        harmless = template.open([Message(role="user", content="x")])
        rendered = template.open([Message(role="user", content=content)])
        expected = [number for number in harmless.ids.tolist() if number in control.values()]
        assert [number for number in rendered.ids.tolist() if number in control.values()] == expected
        assert content.strip() in template.decode(rendered.ids)

    is_text()
