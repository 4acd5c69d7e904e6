"""A tokenizer whose tokens are bytes: enough for models that are trained from scratch, and readable by Hugging Face's library too.

0..255  the bytes          259  <|im_start|>      263  <tool_call>
256     <pad>              260  <|im_end|>        264  </tool_call>
257     <eos>              261  <think>           265  <|reserved_265|>
258     <bos>              262  </think>          ...
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from penstock.chat.files import builtin_template
from penstock.errors import ConfigError

PAD_ID, EOS_ID, BOS_ID = 256, 257, 258
_SPECIAL = ("<pad>", "<eos>", "<bos>", "<|im_start|>", "<|im_end|>")
_TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
"""What a model writes into its own text; not flagged as special, so decoders show them."""
_NAMED = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"}


def write_byte_tokenizer(directory: Path | str, template: str = "chatml", *, vocab_size: int = 512) -> None:
    """Write `tokenizer.json`, `tokenizer_config.json`, `special_tokens_map.json` and `chat_template.jinja` into `directory`, which is made if missing.

    Ids that have no meaning yet are reserved up to `vocab_size`, so that every id a model of that size can sample has a spelling.
    """
    num_used = 256 + len(_SPECIAL) + len(_TAGS)
    if vocab_size < num_used:
        raise ConfigError(f"a byte tokenizer has at least {num_used} ids, vocab_size is {vocab_size}")
    added = [_added_token(256 + number, spelling, special=spelling in _SPECIAL) for number, spelling in enumerate(_SPECIAL + _TAGS)]
    added += [_added_token(number, f"<|reserved_{number}|>", special=True) for number in range(num_used, vocab_size)]
    config = {**_NAMED, "tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, "model_max_length": 1_000_000}
    where = Path(directory)
    where.mkdir(parents=True, exist_ok=True)
    _write_json(where / "tokenizer.json", _tokenizer(added))
    _write_json(where / "tokenizer_config.json", config)
    _write_json(where / "special_tokens_map.json", _NAMED)
    (where / "chat_template.jinja").write_text(builtin_template(template), encoding="utf-8")


def _tokenizer(added: list[dict[str, Any]]) -> dict[str, Any]:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    vocab = {character: byte for byte, character in enumerate(byte_characters())}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }


def byte_characters() -> list[str]:
    """The character by which byte-level tokenizers write each byte: itself if it can be seen, else the next one from U+0100 on."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = iter(range(0x100, 0x200))
    return [chr(byte if byte in visible else next(hidden)) for byte in range(256)]


def _added_token(number: int, spelling: str, *, special: bool) -> dict[str, Any]:
    return {"id": number, "content": spelling, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": special}


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
