"""YAML as people mean it: `on` is text, `1e-4` is a number, a key stands once."""

from __future__ import annotations

import re
from typing import Any

import yaml

from penstock.errors import ConfigError

_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)")
_FLOAT = re.compile(r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*|[0-9][0-9_]*(?=[eE]))(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_RESOLVERS = (
    ("bool", re.compile("true|True|TRUE|false|False|FALSE"), "tTfF"),
    ("null", re.compile("~|null|Null|NULL|"), ["~", "n", "N", ""]),
    ("int", _INTEGER, "-+0123456789"),
    ("float", _FLOAT, "-+.0123456789"),
)


_ODD_BREAKS = re.compile(r"[\r\x85\u2028\u2029]")


class _Loader(yaml.SafeLoader):
    """Safe, with the scalars of YAML 1.2: no `yes`, no octal `010`, no sexagesimal `1:30`, no dates."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - the name and type are PyYAML's

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep=deep)
        # A tag that is written out (`!!int ""`, `!!bool x`) is believed before the text is looked at.
        except (ValueError, LookupError, AttributeError) as error:
            kind = node.tag.removeprefix("tag:yaml.org,2002:")
            raise ConfigError(f"line {node.start_mark.line + 1}: the value is not of type {kind}: {error!r:.80}") from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node)
            if not isinstance(key, str):
                raise ConfigError(f"line {key_node.start_mark.line + 1}: a key must be text, got {key!r}")
            if key in seen:
                raise ConfigError(f"line {key_node.start_mark.line + 1}: key {key!r} stands twice")
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


class _Dumper(yaml.SafeDumper):
    """Quotes whatever this or an older reader of YAML would take for something else than text."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, text: str) -> yaml.ScalarNode:
        """Text with any line break but `\\n` is written with escapes: the reader would fold it into another one."""
        return self.represent_scalar("tag:yaml.org,2002:str", text, style='"' if _ODD_BREAKS.search(text) else None)


def _whole(pattern: re.Pattern[str]) -> re.Pattern[str]:
    return re.compile(f"(?:{pattern.pattern})$")


_Dumper.add_representer(str, _Dumper.represent_text)
for _tag, _pattern, _first in _RESOLVERS:
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", _whole(_pattern), list(_first))
    _Dumper.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", _whole(_pattern), list(_first))


def parse(text: str) -> Any:
    """The value of a YAML text. Raises `ConfigError` with the line.

    >>> parse("{learning_rate: 1e-4, mode: on, size: 32_768}")
    {'learning_rate': 0.0001, 'mode': 'on', 'size': 32768}
    """
    try:
        return _unshared(yaml.load(text, Loader=_Loader))  # noqa: S506 - a SafeLoader
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise ConfigError(f"{line}{error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"not YAML: {error}") from None
    except RecursionError:
        raise ConfigError("not YAML that a config could be: nested too deep") from None


def _unshared(value: Any) -> Any:
    """A copy in which an anchor and its aliases are values of their own, so that an override of one leaves the others alone."""
    if isinstance(value, dict):
        return {key: _unshared(entry) for key, entry in value.items()}
    return [_unshared(entry) for entry in value] if isinstance(value, list) else value


def write(value: Any) -> str:
    """YAML that `parse` reads back as the same value."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=160)
