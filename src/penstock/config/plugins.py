"""Parts by name: built in, offered by installed packages under an entry point, or `module:attribute`."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from importlib.metadata import entry_points
from typing import Any

from penstock.errors import ConfigError


def named_part(name: str, built_in: Mapping[str, Any], group: str, *, key: str) -> Any:
    """What `name` stands for. Built-in names come first, so that an installed package cannot change what a config means.

    `group` is that of the entry points. Raises `ConfigError` under the config's `key` for a name that nothing has, or a module that has no such thing.
    """
    if name in built_in:  # before anything else: looking through what is installed takes milliseconds, and losses are named for every micro-batch
        return built_in[name]
    check_part_name(name, built_in, group, key=key)
    offered = {point.name: point for point in entry_points(group=group)}
    if name in offered:
        return offered[name].load()
    module_name, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"{key} {name!r} cannot be imported: {error}") from error


def check_part_name(name: str, built_in: Iterable[str], group: str, *, key: str) -> None:
    """Refuse a name that cannot stand for anything, without importing what it stands for.

    >>> check_part_name("ppo-clip", ["gspo", "ppo_clip"], "penstock.losses", key="algorithm.loss.name")
    Traceback (most recent call last):
    penstock.errors.ConfigError: algorithm.loss.name 'ppo-clip' is unknown, did you mean 'ppo_clip'? Known: gspo, ppo_clip, or module:function
    """
    built_in = tuple(built_in)
    if ":" in name or name in built_in:
        return
    known = [*built_in, *sorted(point.name for point in entry_points(group=group))]
    if name not in known:
        nearest = get_close_matches(name, known, n=1, cutoff=0.0)
        raise ConfigError(f"{key} {name!r} is unknown, did you mean {nearest[0]!r}? Known: {', '.join(known)}, or module:function")
