from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.chat import ChatTemplate, write_byte_tokenizer


@pytest.fixture(scope="session")
def template_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ChatTemplate]:
    """Built-in chat templates over byte tokens, by name."""
    made: dict[str, ChatTemplate] = {}

    def template(name: str) -> ChatTemplate:
        if name not in made:
            directory: Path = tmp_path_factory.mktemp(name)
            write_byte_tokenizer(directory, name)
            made[name] = ChatTemplate.load(directory)
        return made[name]

    return template
