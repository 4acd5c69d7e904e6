"""What a Hugging Face model directory says about chat."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError

BUILTIN_TEMPLATES = ("chatml", "chatml_think", "plain")


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateFiles:
    """The texts that a chat template consists of."""

    tokenizer_json: str
    template: str
    special_tokens: Mapping[str, str]
    """What the template may write by name: `bos_token`, `eos_token`, ..."""
    end_ids: tuple[int, ...] = ()
    """Further ids that end a reply, by the directory's `generation_config.json`."""

    @property
    def end_tokens(self) -> tuple[str, ...]:
        """Tokens that end a reply by their name."""
        return tuple(spelling for name, spelling in self.special_tokens.items() if name == "eos_token")


def builtin_template(name: str) -> str:
    """Text of a template that comes with the package."""
    if name not in BUILTIN_TEMPLATES:
        raise ConfigError(f"there is no built-in chat template {name!r}; there are {', '.join(BUILTIN_TEMPLATES)}")
    return resources.files("penstock.chat").joinpath("templates", f"{name}.jinja").read_text(encoding="utf-8")


def read_files(directory: Path, template: str | None = None) -> TemplateFiles:
    """Read the directory; `template` names a built-in one to use in place of its own."""
    config = _read_json(directory / "tokenizer_config.json")
    special = {**_special_tokens(_read_json(directory / "special_tokens_map.json")), **_special_tokens(config)}
    ends = _read_json(directory / "generation_config.json").get("eos_token_id")
    return TemplateFiles(
        tokenizer_json=_read_text(directory / "tokenizer.json"),
        template=builtin_template(template) if template is not None else _own_template(directory, config),
        special_tokens=special,
        end_ids=tuple(one for one in (ends if isinstance(ends, list) else [ends]) if isinstance(one, int)),
    )


def _own_template(directory: Path, config: Mapping[str, Any]) -> str:
    if (directory / "chat_template.jinja").exists():
        return _read_text(directory / "chat_template.jinja")
    own = config.get("chat_template")
    if isinstance(own, list):
        own = next((one.get("template") for one in own if isinstance(one, dict) and one.get("name") == "default"), None)
    if not isinstance(own, str):
        raise ConfigError(f"{directory} holds no chat template; name a built-in one ({', '.join(BUILTIN_TEMPLATES)})")
    return own


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    named = {name: value.get("content") if isinstance(value, dict) else value for name, value in config.items() if name.endswith("_token")}
    return {name: spelling for name, spelling in named.items() if isinstance(spelling, str)}


def _read_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        value = json.loads(_read_text(path))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} does not hold a JSON object")
    return value


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
