"""From YAML and dotted overrides to nested frozen dataclasses, and back."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

from penstock.config import _yaml
from penstock.errors import ConfigError

Root = TypeVar("Root")


def load(source: Path | str, overrides: Sequence[str], root: type[Root]) -> Root:
    """A config of type `root` from a YAML file (a `Path`) or text (a `str`), with `key.sub=value` words applied on top.

    Raises `ConfigError` that names key, value and what was expected, for an unknown key also the nearest one.

    >>> from penstock.types import Laws
    >>> load("max_lag: 2", ["session_seconds=5"], Laws).session_seconds
    5.0
    >>> load("max_lagg: 2", [], Laws)
    Traceback (most recent call last):
    penstock.errors.ConfigError: max_lagg: unknown key (value 2); did you mean max_lag?
    """
    text = _read(source) if isinstance(source, Path) else source
    tree = _yaml.parse(text)
    if tree is None:
        tree = {}
    if not isinstance(tree, dict):
        raise ConfigError(f"the config must be keys with values, got {_show(tree)}")
    for word in overrides:
        _override(tree, word)
    config: Root = _convert(tree, root, "")
    return config


def dump(config: Any) -> str:
    """The config as YAML that loads back to an equal one. Every key is written, those with a default too."""
    return _yaml.write(plain(config))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"config {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"config {path} is not UTF-8 at byte {error.start}") from None


def _override(tree: dict[str, Any], word: str) -> None:
    dotted, equals, text = word.partition("=")
    keys = dotted.split(".")
    if not equals or not all(keys):
        raise ConfigError(f"an override must look like key.sub=value, got {word!r}")
    try:
        value = _yaml.parse(text)
    except ConfigError as error:
        raise ConfigError(f"{dotted}: the value {text!r} is not YAML: {error}") from None
    place = tree
    for depth, key in enumerate(keys[:-1], start=1):
        inner = place.get(key)
        if inner is None:
            inner = place[key] = {}
        if not isinstance(inner, dict):
            raise ConfigError(f"{dotted}: {'.'.join(keys[:depth])} is {_show(inner)} and has no keys")
        place = inner
    place[keys[-1]] = value


def _convert(value: Any, hint: Any, key: str) -> Any:
    """`value` as a `hint`, or `ConfigError` under the dotted `key`."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        return _one_of(value, arguments, hint, key)
    if origin is Literal:
        if not any(type(value) is type(choice) and value == choice for choice in arguments):
            raise _wrong(value, hint, key)
        return value
    if origin in (tuple, list):
        return origin(_entries(value, origin, arguments, hint, key))
    if origin in (Mapping, dict):
        if not isinstance(value, dict):
            raise _wrong(value, hint, key)
        return {name: _convert(entry, arguments[1], f"{key}.{name}") for name, entry in value.items()}
    if dataclasses.is_dataclass(hint):
        return _section(value, hint, key)
    return _scalar(value, hint, key)


def _scalar(value: Any, hint: Any, key: str) -> Any:
    kind = type(value)
    if hint is float and kind in (int, float):
        try:
            number = float(value)
        except OverflowError:  # an integer that no float comes near
            number = math.inf
        if not math.isfinite(number):
            raise _wrong(value, hint, key)
        return number
    if hint is Path and kind is str:
        return Path(value)
    if isinstance(hint, type) and issubclass(hint, Enum):
        for member in hint:
            if member.value == value and type(member.value) is kind:
                return member
        raise _wrong(value, hint, key)
    # By type and not by isinstance: true is an int to Python and a mistake here.
    if hint not in (str, int, bool, type(None)) or kind is not hint:
        raise _wrong(value, hint, key)
    return value


def _entries(value: Any, origin: Any, arguments: tuple[Any, ...], hint: Any, key: str) -> list[Any]:
    if not isinstance(value, list):
        raise _wrong(value, hint, key)
    if origin is list or arguments[-1] is Ellipsis:
        members = (arguments[0],) * len(value)
    elif len(value) == len(arguments):
        members = arguments
    else:
        raise _wrong(value, hint, key)
    return [_convert(entry, member, f"{key}[{index}]") for index, (entry, member) in enumerate(zip(value, members, strict=True))]


def _one_of(value: Any, members: tuple[Any, ...], hint: Any, key: str) -> Any:
    if value is None and type(None) in members:
        return None
    others = [member for member in members if member is not type(None)]
    if len(others) == 1:
        try:
            return _convert(value, others[0], key)
        except _WrongTypeError:
            raise _wrong(value, hint, key) from None
    for member in others:
        try:
            return _convert(value, member, key)
        except ConfigError:
            continue
    raise _wrong(value, hint, key)


def _section(value: Any, section: Any, key: str) -> Any:
    if value is None:  # `learner:` with nothing under it is a section of defaults
        value = {}
    if not isinstance(value, dict):
        raise _wrong(value, section, key)
    hints = typing.get_type_hints(section)
    fields = {field.name: field for field in dataclasses.fields(section) if field.init}
    inside = f"{key}." if key else ""
    for name, entry in value.items():
        if name not in fields:
            nearest = get_close_matches(name, fields, n=1, cutoff=0.5)
            hint = f"did you mean {inside}{nearest[0]}?" if nearest else f"there are {', '.join(fields)}"
            raise ConfigError(f"{inside}{name}: unknown key (value {_show(entry)}); {hint}")
    for name, field in fields.items():
        if name not in value and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ConfigError(f"{inside}{name}: missing; it must be {describe(hints[name])}")
    values = {name: _convert(entry, hints[name], f"{inside}{name}") for name, entry in value.items()}
    try:
        return section(**values)
    except ConfigError as error:
        raise _located(error, section, key) from None


def _located(error: ConfigError, section: Any, key: str) -> ConfigError:
    """A complaint of a section about its own values, under the key that the section has in this config."""
    message = str(error)
    if not key or message.startswith(key):
        return error
    first = message.replace(":", " ").split(maxsplit=1)[0]
    names_own_field = first.split(".")[0] in {field.name for field in dataclasses.fields(section)}
    return ConfigError(f"{key}.{message}" if names_own_field else f"{key}: {message}")


class _WrongTypeError(ConfigError):
    """The value itself, and not something inside it, has the wrong type."""


def _wrong(value: Any, hint: Any, key: str) -> ConfigError:
    quotes = "; write it in quotes" if hint is str and not isinstance(value, (dict, list)) and value is not None else ""
    return _WrongTypeError(f"{key or 'the config'}: must be {describe(hint)}, got {_show(value)}{quotes}")


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def plain(value: Any) -> Any:
    """A config value as YAML knows it."""
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value) if field.init}
    if isinstance(value, Mapping):
        return {name: plain(entry) for name, entry in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(entry) for entry in value]
    if isinstance(value, Enum):
        return value.value
    return str(value) if isinstance(value, Path) else value


_WORDS: dict[Any, str] = {str: "text", int: "an integer", float: "a number", bool: "true or false", type(None): "null", Path: "a path", Any: "any value"}


def describe(hint: Any) -> str:
    """A type in words.

    >>> describe(int | None), describe(Literal["oldest", "newest"]), describe(tuple[str, ...])
    ('an integer or null', 'oldest or newest', 'a list of text')
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in _WORDS:
        return _WORDS[hint]
    if origin in (typing.Union, types.UnionType):
        return " or ".join(describe(member) for member in arguments)
    if origin is Literal:
        return " or ".join(map(str, arguments))
    if origin is list or (origin is tuple and arguments[-1] is Ellipsis):
        return f"a list of {describe(arguments[0])}"
    if origin is tuple:
        return f"a list of {' and '.join(describe(member) for member in arguments)}"
    if origin in (Mapping, dict):
        return f"keys with {describe(arguments[1])}"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return " or ".join(str(member.value) for member in hint)
    return "a section"
