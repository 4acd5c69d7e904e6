"""Chat templates to try things on, by their style."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from penstock.chat import ChatTemplate, write_byte_tokenizer

STYLES = Path(__file__).parents[1] / "data" / "templates"


@functools.cache
def template(style: str) -> ChatTemplate:
    """One of those in `STYLES`, or one that the package brings."""
    if (STYLES / style).exists():
        return ChatTemplate.load(STYLES / style)
    made = Path(tempfile.mkdtemp())
    write_byte_tokenizer(made, style)
    return ChatTemplate.load(made)
