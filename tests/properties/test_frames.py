"""What was written around other texts is what the template writes around these; and tokens are cut into pieces as the slow way does."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties.styles import STYLES, template

from penstock.chat import ChatTemplate, Piece, write_byte_tokenizer
from penstock.chat.files import TemplateFiles, read_files
from penstock.chat.spans import Span, labelled
from penstock.chat.vocabulary import Encoded
from penstock.types import Message

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'user' %}WRITTEN{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ODD = {
    "asks how it begins": "{% if m.content.startswith('<x>') %}X{% endif %}{{ m.content }}",
    "asks what it is": "{{ 'nothing' if m.content == 'a' else m.content }}",
    "asks what is in it": "{{ m.content + ('!' if '?' in m.content else '.') }}",
    "looks it up in words": "{{ 'known' if m.content in ['a', 'b'] else m.content }}",
    "cuts it": "{{ m.content.split('</think>')[-1].lstrip('\\n') }}",
    "changes a word": "{{ m.content.replace('a', 'b') }}",
    "trims it": "{{ m.content | trim }}",
    "trims what it put together": "{{ (' ' + m.content) | trim }}",
    "counts it": "{{ m.content | length }}{{ m.content }}",
    "shortens it": "{{ m.content[:3] }}",
    "makes it JSON": "{{ m.content | tojson }}",
    "makes all of it JSON": "{{ m | tojson }}",
    "joins": "{% set c = ' '.join([m.content, 'b']) %}{{ c.replace('a', '') }}",
    "glues": "{% set c = m.content ~ 'x' %}{{ c.replace('ax', '') }}",
    "keeps what it wrote": "{% set c %}{{ m.content }}x{% endset %}{{ c.replace('ax', '') }}",
    "has a macro": "{% macro f(c) %}{{ c }}{% endmacro %}{{ f(m.content).replace('a', '') }}",
    "looks for it elsewhere": "{{ m.content }}{{ '1' if m.content in 'abc' else '0' }}",
    "asks if it is there": "{{ m.content or 'nothing' }}",
    "takes it for a list": "{% if m.content is iterable %}it{% endif %}{{ m.content }}",
    "takes it for a sequence": "{% if m.content is sequence %}seq{% endif %}{{ m.content }}",
    "compares two": "{{ m.content }}{{ '=' if m.content == messages[0].content else '' }}",
}


@functools.cache
def odd(style: str) -> ChatTemplate:
    made = Path(tempfile.mkdtemp())
    write_byte_tokenizer(made, "chatml")
    files = read_files(made, None)
    return ChatTemplate(
        TemplateFiles(**{name: getattr(files, name) for name in files.__dataclass_fields__} | {"template": CHATML.replace("WRITTEN", ODD[style])})
    )


def slow(made: ChatTemplate, messages: Sequence[Message]) -> list[tuple[list[int], str, int | None]]:
    """Reference: the template is asked about these very messages."""
    text, spans = made._after_reply(messages, None, None, True)
    return shown(labelled(made._vocabulary.encode(text), spans))


def shown(pieces: Sequence[Piece]) -> list[tuple[list[int], str, int | None]]:
    return [(piece.ids.tolist(), piece.source.value, piece.message_index) for piece in pieces]


words = st.sampled_from(
    ["a", "b", "?", "<x>", "</think>", "<think>", "<tool_response>", "</tool_response>", "<|im_end|>", " ", "\n", "question", "ü", "{{ 1 }}", "ab"]
)
contents = st.lists(words, min_size=1, max_size=5).map("".join)
roles = st.lists(st.sampled_from(["user", "user", "system"]), min_size=1, max_size=2)


@pytest.mark.parametrize("style", ["chatml", "chatml_think", "plain", *sorted(path.name for path in STYLES.iterdir())])
@given(who=roles, said=st.lists(contents, min_size=2, max_size=2))
@settings(max_examples=25)
def test_a_frame_gives_what_the_template_gives(style: str, who: list[str], said: list[str]) -> None:
    made = template(style)
    messages = [Message(role=role, content=content) for role, content in zip(who, said, strict=False)]
    found = made._framed(messages, None)
    if found is not None:
        assert shown(made._cut(*found)) == slow(made, messages)
    found = made._framed(messages, None, is_opening=True)
    if found is not None:
        text, spans = made._whole(messages, None, True)
        assert shown(made._cut(*found)) == shown(labelled(made._vocabulary.encode(text), spans))


@pytest.mark.parametrize("style", sorted(ODD))
@given(content=contents)
@settings(max_examples=20)
def test_whatever_a_template_does_with_a_text_a_frame_is_right_or_there_is_none(style: str, content: str) -> None:
    made = odd(style)
    found = made._framed([Message(role="user", content=content)], None)
    if found is not None:
        assert found[0] == made._after_reply([Message(role="user", content=content)], None, None, True)[0]
    found = made._framed([Message(role="user", content=content)], None, is_opening=True)
    if found is not None:
        assert found[0] == made._whole([Message(role="user", content=content)], None, True)[0]


@pytest.mark.parametrize("style", ["chatml", "plain", *sorted(path.name for path in STYLES.iterdir())])
@given(content=contents, start=st.integers(0, 20), length=st.integers(0, 20))
@settings(max_examples=25)
def test_text_is_cut_into_tokens_as_by_the_bounds_of_each(style: str, content: str, start: int, length: int) -> None:
    vocabulary = template(style)._vocabulary
    marked = vocabulary.mark(f"<|im_start|>user\n{content}<|im_end|>\n")
    borders = [(start, min(start + length, len(marked)))] if start < len(marked) else []
    spans = [Span(index=0, start=first, stop=behind) for first, behind in borders]
    assert shown(template(style)._cut(marked, spans)) == shown(labelled(vocabulary.encode(marked), spans))


def test_the_templates_that_ship_and_most_others_have_frames() -> None:
    question = [Message(role="user", content="And now")]
    framed = {style for style in ("chatml", "chatml_think", "plain", *(path.name for path in STYLES.iterdir())) if template(style)._framed(question, None)}
    assert framed >= {"chatml", "chatml_think", "plain", "qwen3_style", "llama3_style", "gemma_style"}
    opened = {style for style in framed if template(style)._framed(question, None, is_opening=True)}
    assert opened >= {"chatml", "chatml_think", "plain", "qwen3_style", "llama3_style", "gemma_style"}
    kinds = {style for style in ODD if odd(style)._framed(question, None)}
    assert kinds == {
        "asks how it begins",
        "asks what it is",
        "asks what is in it",
        "looks it up in words",
        "cuts it",
        "changes a word",
        "trims it",
        "asks if it is there",
        "compares two",
    }


@given(
    lengths=st.lists(st.integers(1, 4), min_size=1, max_size=12), cuts=st.lists(st.integers(0, 40), min_size=0, max_size=6, unique=True), overlap=st.booleans()
)
def test_pieces_are_cut_as_token_by_token(lengths: list[int], cuts: list[int], overlap: bool) -> None:
    ends = np.cumsum(lengths).astype(np.int32)
    starts = np.maximum(ends - np.array(lengths, np.int32) - (1 if overlap else 0), 0).astype(np.int32)
    encoded = Encoded(ids=np.arange(len(lengths), dtype=np.int32), starts=starts, ends=ends)
    borders = sorted(cut for cut in cuts if cut <= ends[-1])
    spans = [Span(index=place // 2, start=start, stop=stop) for place, (start, stop) in enumerate(pairwise(borders)) if place % 2 == 0]
    owners: list[int | None] = [None] * len(lengths)
    for span in spans:
        for token in range(len(lengths)):
            if ends[token] > span.start and starts[token] < span.stop:
                owners[token] = span.index
    found = [piece.message_index for piece in labelled(encoded, spans) for _ in piece.ids]
    assert found == owners
