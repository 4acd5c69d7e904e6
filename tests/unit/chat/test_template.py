from __future__ import annotations

import functools
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from penstock.chat import ChatTemplate, Piece, Rendered, write_byte_tokenizer
from penstock.errors import InvalidError, InvariantError
from penstock.types import Message, Source

STYLES = Path(__file__).parents[2] / "data" / "templates"
IM_START, IM_END, EOS = 259, 260, 257
LOOK = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}}}


def user(content: str) -> Message:
    return Message(role="user", content=content)


def assistant(content: str) -> Message:
    return Message(role="assistant", content=content)


def tool(content: str, call_id: str | None = None) -> Message:
    return Message(role="tool", content=content, tool_call_id=call_id)


def shown(template: ChatTemplate, rendered: Rendered) -> list[tuple[str, int | None, str]]:
    return [(piece.source.value, piece.message_index, template.decode(piece.ids)) for piece in rendered.pieces]


@pytest.fixture(scope="module")
def chatml(tmp_path_factory: pytest.TempPathFactory) -> ChatTemplate:
    directory = tmp_path_factory.mktemp("chatml")
    write_byte_tokenizer(directory, "chatml")
    return ChatTemplate.load(directory)


@pytest.fixture(scope="module")
def chatml_think(tmp_path_factory: pytest.TempPathFactory) -> ChatTemplate:
    directory = tmp_path_factory.mktemp("chatml_think")
    write_byte_tokenizer(directory, "chatml_think")
    return ChatTemplate.load(directory)


@functools.cache
def foreign(style: str) -> ChatTemplate:
    return ChatTemplate.load(STYLES / style)


@functools.cache
def reference(style: str) -> Any:
    return AutoTokenizer.from_pretrained(STYLES / style)


def test_a_prompt_is_cut_into_template_and_messages(chatml: ChatTemplate) -> None:
    rendered = chatml.open([Message(role="system", content="Be brief."), user(" hi\n")])
    assert shown(chatml, rendered) == [
        ("template", None, "<|im_start|>system\n"),
        ("env", 0, "Be brief."),
        ("template", None, "<|im_end|>\n<|im_start|>user\n"),
        ("env", 1, " hi\n"),
        ("template", None, "<|im_end|>\n<|im_start|>assistant\n"),
    ]
    assert rendered.ids.dtype == np.int32
    assert rendered.ids[0] == IM_START


def test_an_end_of_turn_that_was_sampled_is_not_repeated(chatml: ChatTemplate) -> None:
    rendered = chatml.delta(IM_END, [user("go on")])
    assert shown(chatml, rendered) == [
        ("template", None, "\n<|im_start|>user\n"),
        ("env", 0, "go on"),
        ("template", None, "<|im_end|>\n<|im_start|>assistant\n"),
    ]


@pytest.mark.parametrize("last_id", [ord("x"), EOS])
def test_a_reply_that_was_cut_off_or_stopped_otherwise_gets_its_end_of_turn(chatml: ChatTemplate, last_id: int) -> None:
    rendered = chatml.delta(last_id, [user("go on")])
    assert rendered.pieces[0].source is Source.TEMPLATE
    assert rendered.pieces[0].ids[0] == IM_END
    assert rendered.ids[1:].tolist() == chatml.delta(IM_END, [user("go on")]).ids.tolist()


def test_parallel_results_are_added_at_once(chatml: ChatTemplate) -> None:
    rendered = chatml.delta(IM_END, [tool("one"), tool("two")], [LOOK])
    assert [piece[1:] for piece in shown(chatml, rendered) if piece[0] == "env"] == [(0, "one"), (1, "two")]


def test_results_that_share_a_turn_are_added_as_one_turn() -> None:
    template = foreign("qwen3_style")
    assert template.end_id is not None
    rendered = template.delta(template.end_id, [tool("one"), tool("two")], reply=assistant("<think>\nlook\n</think>\n\ncalling"))
    expected = "\n<|im_start|>user\n<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    assert template.decode(rendered.ids) == expected


def test_a_delta_without_a_generation_prompt_ends_with_the_message(chatml: ChatTemplate) -> None:
    rendered = chatml.delta(IM_END, [user("bye")], add_generation_prompt=False)
    assert chatml.decode(rendered.ids) == "\n<|im_start|>user\nbye<|im_end|>\n"


def test_a_delta_of_nothing_is_refused(chatml: ChatTemplate) -> None:
    with pytest.raises(InvalidError, match="at least one"):
        chatml.delta(IM_END, [])


def test_a_template_that_wants_structured_calls_gets_them_before_a_result() -> None:
    template = foreign("mistral_style")
    assert template.end_id is not None
    rendered = template.delta(template.end_id, [tool("3", "abcdefghi"), tool("4", "ihgfedcba")])
    expected = '[TOOL_RESULTS] {"content": 3, "call_id": "abcdefghi"}[/TOOL_RESULTS][TOOL_RESULTS] {"content": 4, "call_id": "ihgfedcba"}[/TOOL_RESULTS]'
    assert template.decode(rendered.ids) == expected


def test_a_result_that_is_named_after_its_call_is_named_after_the_replys_call(tmp_path: Path) -> None:
    write_byte_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(
        "{% for m in messages %}<|im_start|>{{ m.role }}{% if m.role == 'tool' %} {{ messages[loop.index0 - 1].tool_calls[0].function.name }}{% endif %}"
        "{{ '\\n' + m.content }}{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}<|im_end|>{% endfor %}<|im_start|>assistant\n"
    )
    template = ChatTemplate.load(tmp_path)
    call = {"id": "call_0", "type": "function", "function": {"name": "weigh", "arguments": '{"what": "it"}'}}
    rendered = template.delta(IM_END, [tool("3 kg")], reply=Message(role="assistant", tool_calls=(call,)))
    assert template.decode(rendered.ids).startswith("<|im_start|>tool weigh\n3 kg<|im_end|>")


def test_a_rewritten_history_is_refused_by_delta_and_forked_by_extend(chatml_think: ChatTemplate) -> None:
    reply = assistant("<think>\nhm\n</think>\n\n4")
    with pytest.raises(InvariantError, match=r"last_reply, old_replies"):
        chatml_think.delta(IM_END, [user("and 3+3?")], reply=reply)
    prompt = chatml_think.open([user("2+2?")])
    sampled = Piece(ids=np.append(chatml_think.encode_text(reply.content, control_tokens=True), np.int32(IM_END)), source=Source.SAMPLED)
    messages = [user("2+2?"), reply, user("and 3+3?")]
    fork = chatml_think.extend(messages, [*prompt.pieces, sampled], 1)
    assert fork.keep == len(prompt.ids)
    assert chatml_think.decode(fork.ids) == "4<|im_end|>\n<|im_start|>user\nand 3+3?<|im_end|>\n<|im_start|>assistant\n"
    assert [piece.message_index for piece in fork.pieces] == [1, None, 2, None]
    assert [*prompt.ids, *fork.ids] == chatml_think.open(messages).ids.tolist()


def test_thinking_stays_while_tools_are_called(chatml_think: ChatTemplate) -> None:
    reply = assistant("<think>\nhm\n</think>\n\n<tool_call>{}</tool_call>")
    prompt = chatml_think.open([user("2+2?")])
    sampled = Piece(ids=np.append(chatml_think.encode_text(reply.content, control_tokens=True), np.int32(IM_END)), source=Source.SAMPLED)
    messages = [user("2+2?"), reply, tool("4")]
    fork = chatml_think.extend(messages, [*prompt.pieces, sampled], 1)
    assert fork.keep == len(prompt.ids) + len(sampled.ids)
    assert [piece.message_index for piece in fork.pieces] == [None, 2, None]
    assert [*prompt.ids, *sampled.ids, *fork.ids] == chatml_think.open(messages).ids.tolist()


@pytest.mark.parametrize("style", ["llama3_style", "qwen3_style"])
def test_sampled_tokens_stay_even_if_the_tokenizer_would_cut_the_text_otherwise(style: str) -> None:
    template = foreign(style)
    letters = np.concatenate([template.encode_text(letter) for letter in "the answer"])
    assert len(letters) > len(template.encode_text("the answer"))
    assert template.end_id is not None
    prompt = template.open([user("question?")])
    known = [*prompt.pieces, Piece(ids=np.append(letters, np.int32(template.end_id)), source=Source.SAMPLED)]
    messages = [user("question?"), assistant("the answer"), user("more")]
    num_known = len(prompt.ids) + len(letters) + 1
    fork = template.refork(messages, known)
    assert fork.keep == num_known
    assert template.decode(fork.ids) == template.decode(template.open(messages).ids).rsplit("the answer", 1)[1].removeprefix(template.decode([template.end_id]))


def test_a_reply_that_merges_with_its_prompt_stays() -> None:
    template = foreign("qwen3_style")
    assert template.end_id is not None
    reply = np.concatenate([template.encode_text("\n"), template.encode_text("answer"), np.array([template.end_id], np.int32)])
    messages = [user("question?"), assistant("\nanswer"), user("more")]
    prompt = template.open(messages[:1])
    # At once, the two line ends are one token.
    assert len(template.open(messages[:2], add_generation_prompt=False).ids) < len(prompt.ids) + len(reply) + 1
    assert template.refork(messages, [*prompt.pieces, Piece(ids=reply, source=Source.SAMPLED)]).keep == len(prompt.ids) + len(reply)


def test_kept_and_new_tokens_meet_at_a_border_of_both() -> None:
    template = foreign("qwen3_style")
    prompt = template.open([user("question?")])
    known = [*prompt.pieces, Piece(ids=template.encode_text("\nother"), source=Source.SAMPLED)]
    messages = [user("question?"), assistant("\nanswer"), user("more")]
    fork = template.refork(messages, known)
    # The prompt's last line end is half of a token now.
    assert fork.keep == len(prompt.ids) - 1
    assert [*prompt.ids[: fork.keep], *fork.ids] == template.open(messages).ids.tolist()


def test_an_edited_message_forks_where_it_differs(chatml: ChatTemplate) -> None:
    known = chatml.open([user("abcX")]).pieces
    fork = chatml.refork([user("abcY")], known)
    assert fork.keep == len("?user\nabc")
    assert chatml.decode(fork.ids) == "Y<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("style", ["qwen3_style", "llama3_style", "gemma_style", "phi_style", "open_ended_style"])
@pytest.mark.parametrize("content", ["I think", "I think \n", "<b> naïve", " leading"])
def test_a_message_that_is_continued_ends_where_transformers_ends_it(style: str, content: str) -> None:
    template = foreign(style)
    rendered = template.open([user("go"), assistant(content)], continue_final_message=True)
    plain = [{"role": "user", "content": "go"}, {"role": "assistant", "content": content}]
    expected = reference(style).apply_chat_template(plain, continue_final_message=True, return_dict=False, date_string="26 Jul 2024")
    assert rendered.ids.tolist() == expected
    assert rendered.pieces[-1].message_index == 1


def test_an_empty_message_is_continued_from_its_header(chatml: ChatTemplate) -> None:
    rendered = chatml.open([user("go"), assistant("")], continue_final_message=True)
    assert rendered.ids.tolist() == chatml.open([user("go")]).ids.tolist()


def test_only_an_assistant_is_continued(chatml: ChatTemplate) -> None:
    with pytest.raises(InvalidError, match="'user'"):
        chatml.open([user("go")], continue_final_message=True)


def test_a_reply_is_read_up_to_its_end(chatml: ChatTemplate) -> None:
    ids = [*b"<", 261, *"é".encode(), IM_END]
    assert chatml.split_reply(ids).text == "<<think>é"
    assert chatml.split_reply(ids).ended
    assert not chatml.split_reply(ids[:-1]).ended
    assert chatml.split_reply([EOS]).ended
    assert chatml.split_reply([]).text == ""


def test_the_clock_of_a_template_is_an_argument() -> None:
    rendered = ChatTemplate.load(STYLES / "llama3_style", now=datetime(2031, 2, 3, tzinfo=UTC))
    assert "Today Date: 03 Feb 2031" in rendered.decode(rendered.open([user("hi")]).ids)
    other = foreign("llama3_style")
    assert other.digest != rendered.digest
    assert other.tokenizer_digest == rendered.tokenizer_digest


def test_variables_reach_the_template() -> None:
    template = ChatTemplate.load(STYLES / "qwen3_style", variables={"enable_thinking": False})
    assert template.decode(template.open([user("hi")]).ids).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


def test_tools_are_rendered_as_transformers_renders_them() -> None:
    for style in ("qwen3_style", "llama3_style", "mistral_style"):
        template = foreign(style)
        expected = reference(style).apply_chat_template(
            [{"role": "user", "content": "hi"}], [LOOK], add_generation_prompt=True, return_dict=False, date_string="26 Jul 2024"
        )
        assert template.open([user("hi")], [LOOK]).ids.tolist() == expected


def test_calls_are_rendered_as_transformers_renders_them() -> None:
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "look", "arguments": {"at": "the map é"}}}
    wire_call = {**call, "function": {"name": "look", "arguments": '{"at": "the map é"}'}}
    for style in ("qwen3_style", "llama3_style", "mistral_style"):
        plain = [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "7", "tool_call_id": "abcdefghi"},
        ]
        expected = reference(style).apply_chat_template(plain, add_generation_prompt=True, return_dict=False, date_string="26 Jul 2024")
        messages = [user("hi"), Message(role="assistant", tool_calls=(wire_call,)), tool("7", "abcdefghi")]
        assert foreign(style).open(messages).ids.tolist() == expected


def test_what_a_template_refuses_is_the_callers_mistake() -> None:
    template = foreign("gemma_style")
    with pytest.raises(InvalidError, match="No system role"):
        template.open([Message(role="system", content="rules"), user("hi")])
    with pytest.raises(InvalidError, match="take turns"):
        template.open([user("hi"), user("hi")])


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Message(role="wizard", content="x"), "wizard"),
        (user("a\ufdd0b"), "U\\+FDD0 at 1"),
        (user("\ud800"), "U\\+D800 at 0"),
        (Message(role="assistant", tool_calls=({"function": {"name": "f", "arguments": {"a": ["\ufdd2"]}}},)), "U\\+FDD2"),
    ],
)
def test_messages_that_are_not_text_are_refused(chatml: ChatTemplate, message: Message, reason: str) -> None:
    with pytest.raises(InvalidError, match=reason):
        chatml.open([message])
    with pytest.raises(InvalidError):
        chatml.open([])


def test_a_template_cannot_reach_into_python(tmp_path: Path) -> None:
    write_byte_tokenizer(tmp_path)
    escape = "{% if messages | length > 6 %}{{ ''.__class__.__mro__ }}{% endif %}{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"
    (tmp_path / "chat_template.jinja").write_text(escape)
    template = ChatTemplate.load(tmp_path)
    with pytest.raises(InvalidError, match="unsafe"):
        template.open([user("x")] * 7)
