from __future__ import annotations

from pathlib import Path

import pytest

from penstock.chat import ChatTemplate, Rewrite, write_byte_tokenizer
from penstock.errors import ConfigError, InvariantError
from penstock.types import Message

STYLES = Path(__file__).parents[2] / "data" / "templates"


def load(tmp_path: Path, text: str) -> ChatTemplate:
    write_byte_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(text)
    return ChatTemplate.load(tmp_path)


@pytest.mark.parametrize(
    ("style", "after_user", "after_tool"),
    [
        ("qwen3_style", {Rewrite.LAST_REPLY, Rewrite.OLD_REPLIES}, {Rewrite.LAST_REPLY, Rewrite.TRIMS}),
        ("llama3_style", {Rewrite.TRIMS}, {Rewrite.TRIMS}),
        ("mistral_style", {Rewrite.FRONT, Rewrite.TRIMS}, {Rewrite.TRIMS}),  # tools travel with the last user
        ("gemma_style", {Rewrite.TRIMS}, None),
        ("phi_style", set(), set()),
        ("forced_thinking_style", {Rewrite.PROMPT}, {Rewrite.PROMPT}),
        ("open_ended_style", {Rewrite.NO_END}, {Rewrite.NO_END}),
        ("traveling_system_style", {Rewrite.FRONT, Rewrite.PLACE}, {Rewrite.FRONT}),
    ],
)
def test_each_style_is_known_for_what_it_does(style: str, after_user: set[Rewrite], after_tool: set[Rewrite] | None) -> None:
    template = ChatTemplate.load(STYLES / style)
    assert template.rewrites["user"] == after_user
    assert template.rewrites.get("tool") == after_tool


def test_a_hint_that_thinking_is_off_rewrites_the_prompt() -> None:
    template = ChatTemplate.load(STYLES / "qwen3_style", variables={"enable_thinking": False})
    assert Rewrite.PROMPT in template.rewrites["user"]


def test_white_space_that_only_the_prompt_has_is_not_taken_for_trimming(tmp_path: Path) -> None:
    text = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>\n\n{% endif %}"
    assert load(tmp_path, text).rewrites["user"] == {Rewrite.PROMPT}


def test_counted_rounds_depend_on_their_place(tmp_path: Path) -> None:
    text = "{% for m in messages %}{% if m.role == 'user' %}[{{ loop.index }}]{% endif %}{{ m.content }}<|im_end|>{% endfor %}"
    template = load(tmp_path, text)
    assert template.rewrites["user"] == {Rewrite.PLACE}
    with pytest.raises(InvariantError, match="place"):
        template.delta(260, [Message(role="user", content="x")])


def test_a_reply_that_only_some_messages_end_is_told_by_role(tmp_path: Path) -> None:
    text = "{% for m in messages %}{% if m.role == 'user' and not loop.first %}<|im_end|>{% endif %}{{ '\\n' + m.content }}{% endfor %}{{ '\\n' }}"
    template = load(tmp_path, text)
    assert template.end_id == 260
    assert Rewrite.NO_END not in template.rewrites["user"]
    assert Rewrite.NO_END in template.rewrites["tool"]


def test_a_tag_that_only_this_template_cuts_out_is_found(tmp_path: Path) -> None:
    text = (
        "{% for m in messages %}{% if '[DRAFT]' in m.content and not loop.last %}{{ m.content.split('[DRAFT]')[-1] }}{% else %}{{ m.content }}{% endif %}"
        "<|im_end|>{% endfor %}"
    )
    template = load(tmp_path, text)
    assert template.rewrites["user"] == {Rewrite.LAST_REPLY}
    last = [Message(role="user", content="x")]
    assert template.extends(last, Message(role="assistant", content="plain"))
    assert not template.extends(last, Message(role="assistant", content="a[DRAFT]b"))
    assert not template.extends(last)


def test_a_template_that_counts_the_letters_of_a_tag_is_refused(tmp_path: Path) -> None:
    answer = "{{ m.content[m.content.find('</think>') + 8:] }}"
    text = "{% for m in messages %}{% if '</think>' in m.content %}" + answer + "{% else %}{{ m.content }}{% endif %}<|im_end|>{% endfor %}"
    with pytest.raises(ConfigError, match="control tokens"):
        load(tmp_path, text)


def test_a_template_that_takes_no_question_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="never"):
        load(tmp_path, "{{ raise_exception('never') }}")


def test_what_is_not_jinja_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not valid Jinja"):
        load(tmp_path, "{% for %}")
