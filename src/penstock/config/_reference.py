"""The reference page of a config, made from its dataclasses."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
import typing
from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_origin

from penstock.config import _yaml
from penstock.config._load import describe, plain


def reference(root: type) -> str:
    """Markdown: the docstring of `root` and a table of key, type, default and meaning, sections inside it included."""
    lines = [f"## {root.__name__}", "", inspect.cleandoc(root.__doc__ or ""), "", "| key | type | default | meaning |", "|---|---|---|---|"]
    lines += [f"| `{key}` | {_cell(kind)} | {_cell(default)} | {_cell(meaning)} |" for key, kind, default, meaning in _rows(root, "")]
    return "\n".join(lines) + "\n"


def page(roots: list[type]) -> str:
    """The whole page `docs/config.md`."""
    names = " ".join(f"{root.__module__}:{root.__name__}" for root in roots)
    head = f"# Config\n\nMade by `python -m penstock.config {names}`; do not edit by hand.\n"
    return "\n".join([head, *(reference(root) for root in roots)])


def _rows(section: Any, prefix: str) -> Iterator[tuple[str, str, str, str]]:
    hints, meanings = typing.get_type_hints(section), _meanings(section)
    for field in dataclasses.fields(section):
        hint, key = hints[field.name], f"{prefix}{field.name}"
        inner, inner_prefix = _section_in(hint), f"{key}."
        if get_origin(hint) in (Mapping, dict):
            inner_prefix = f"{key}.<name>."
        yield key, describe(hint), _default(field), meanings.get(field.name, "")
        if inner is not None:
            yield from _rows(inner, inner_prefix)


def _section_in(hint: Any) -> Any | None:
    """The dataclass that a field holds, directly, by name, in a list or as one of several."""
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return hint
    return next((found for member in get_args(hint) if (found := _section_in(member)) is not None), None)


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    elif field.default is not dataclasses.MISSING:
        value = field.default
    else:
        return "**required**"
    if dataclasses.is_dataclass(value):
        return ""
    return f"`{_yaml.write([plain(value)]).removeprefix('- ').strip()}`"


def _meanings(section: type) -> dict[str, str]:
    """The text under each field of a dataclass and of those it extends."""
    meanings: dict[str, str] = {}
    for owner in reversed(section.__mro__):
        if not dataclasses.is_dataclass(owner):
            continue
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        assert isinstance(definition, ast.ClassDef)
        for field, text in zip(definition.body, definition.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                meanings[field.target.id] = inspect.cleandoc(str(text.value.value))
    return meanings


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
