from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from penstock.chat import BOS_ID, BUILTIN_TEMPLATES, EOS_ID, PAD_ID, ChatTemplate, write_byte_tokenizer
from penstock.errors import ConfigError
from penstock.types import Message

HELLO = [Message(role="user", content="héllo")]


@pytest.mark.parametrize("template", BUILTIN_TEMPLATES)
def test_transformers_reads_the_byte_tokenizer(tmp_path: Path, template: str) -> None:
    write_byte_tokenizer(tmp_path, template)
    reference = AutoTokenizer.from_pretrained(tmp_path)
    assert len(reference) == 512
    assert (reference.pad_token_id, reference.eos_token_id, reference.bos_token_id) == (PAD_ID, EOS_ID, BOS_ID) == (256, 257, 258)
    assert reference("é\x00\n", add_special_tokens=False)["input_ids"] == [0xC3, 0xA9, 0, 10]
    assert reference.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>"]) == [*range(259, 265)]
    expected = reference.apply_chat_template([{"role": "user", "content": "héllo"}], add_generation_prompt=True, return_dict=False)
    assert ChatTemplate.load(tmp_path).open(HELLO).ids.tolist() == expected


def test_every_id_of_the_byte_tokenizer_has_a_spelling(tmp_path: Path) -> None:
    write_byte_tokenizer(tmp_path, "plain")
    template = ChatTemplate.load(tmp_path)
    assert template.decode(range(32, 127)) == "".join(map(chr, range(32, 127)))
    assert template.decode([300, 511]) == "<|reserved_300|><|reserved_511|>"
    assert template.decode([512, 513, -1, 2**31, 2**40, 65]) == "A"


def test_a_plain_template_is_only_text_and_an_end(tmp_path: Path) -> None:
    write_byte_tokenizer(tmp_path, "plain")
    template = ChatTemplate.load(tmp_path)
    assert template.open([Message(role="user", content="sort 21>")]).ids.tolist() == list(b"sort 21>")
    assert template.eos_ids == (EOS_ID,)
    assert template.delta(EOS_ID, [Message(role="user", content="more")]).ids.tolist() == list(b"more")


def test_a_byte_tokenizer_needs_room_for_its_tokens(tmp_path: Path) -> None:
    write_byte_tokenizer(tmp_path, vocab_size=265)
    assert len(AutoTokenizer.from_pretrained(tmp_path)) == 265
    with pytest.raises(ConfigError, match="265"):
        write_byte_tokenizer(tmp_path, vocab_size=264)
    with pytest.raises(ConfigError, match="chatml, chatml_think, plain"):
        write_byte_tokenizer(tmp_path, "chatlm")


def test_a_template_is_found_in_the_tokenizers_config_too(tmp_path: Path) -> None:
    write_byte_tokenizer(tmp_path, "chatml")
    expected = ChatTemplate.load(tmp_path)
    text = (tmp_path / "chat_template.jinja").read_text()
    (tmp_path / "chat_template.jinja").unlink()
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    for chat_template in (text, [{"name": "rag", "template": "no"}, {"name": "default", "template": text}]):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "eos_token": {"content": "<eos>"}, "chat_template": chat_template}))
        found = ChatTemplate.load(tmp_path)
        assert found.digest == expected.digest
        assert found.open(HELLO).ids.tolist() == expected.open(HELLO).ids.tolist()


def test_a_directory_without_a_template_takes_a_built_in_one(tmp_path: Path) -> None:
    write_byte_tokenizer(tmp_path, "chatml")
    (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(ConfigError, match="no chat template"):
        ChatTemplate.load(tmp_path)
    assert ChatTemplate.load(tmp_path, template="plain").open(HELLO).ids.tolist() == list("héllo".encode())


def test_a_list_of_templates_without_a_default_is_none(tmp_path: Path) -> None:
    write_byte_tokenizer(tmp_path, "chatml")
    (tmp_path / "chat_template.jinja").unlink()
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": [{"x": 1}, 5, {"name": "default"}]}')
    with pytest.raises(ConfigError, match="no chat template"):
        ChatTemplate.load(tmp_path)


def test_a_template_that_calls_itself_without_end_is_refused(tmp_path: Path) -> None:
    write_byte_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}")
    with pytest.raises(ConfigError, match="does not render a plain question"):
        ChatTemplate.load(tmp_path)


def test_ends_named_by_the_generation_config_count(tmp_path: Path) -> None:
    write_byte_tokenizer(tmp_path, "chatml")
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [256, 260]}')
    assert ChatTemplate.load(tmp_path).eos_ids == (260, 257, 256)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", "{"),
        ("tokenizer_config.json", "["),
        ("tokenizer_config.json", "[]"),
        ("tokenizer_config.json", "[" * 100_000),
        ("tokenizer.json", None),
    ],
)
def test_a_broken_directory_is_refused_by_name(tmp_path: Path, name: str, content: str | None) -> None:
    write_byte_tokenizer(tmp_path)
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=name):
        ChatTemplate.load(tmp_path)


def test_neither_torch_nor_transformers_is_loaded() -> None:
    check = "import sys, penstock.chat; sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
