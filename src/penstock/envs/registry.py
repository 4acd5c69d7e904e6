"""Environments by name: built in, offered by installed packages, or `module:Class`."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from importlib.metadata import entry_points
from typing import Any

from penstock.config import dump, load
from penstock.envs.guess import GuessEnvironment
from penstock.envs.protocol import Environment
from penstock.envs.sort import SortEnvironment
from penstock.envs.textworld import TextWorldEnvironment
from penstock.errors import ConfigError
from penstock.types import Json

ENVIRONMENTS: dict[str, type[Environment]] = {"sort": SortEnvironment, "guess": GuessEnvironment, "textworld": TextWorldEnvironment}

ENTRY_POINTS = "penstock.envs"


def environment(kind: str, params: Mapping[str, Json] | None = None) -> Environment:
    """The environment of that kind with those settings.

    Built-in names come first, so that an installed package cannot change what a config means. Settings of a dataclass are checked as configs are.
    Raises `ConfigError` for an unknown kind (it suggests the nearest), for one that cannot be imported, and for wrong settings.

    >>> from penstock.problems import Split
    >>> environment("sort", {"max_digits": 5}).problems(Split.TRAIN).name
    'train'
    """
    maker: Any = _maker(kind)
    try:
        made: Environment = _checked(maker, params or {}) if dataclasses.is_dataclass(maker) else maker(**(params or {}))
        return made
    except TypeError as error:
        raise ConfigError(f"environment {kind!r} does not take the settings {sorted(params or {})}: {error}") from error


def _checked(settings: Any, params: Mapping[str, Json]) -> Any:
    return load(dump(params), [], settings)


def _maker(kind: str) -> Callable[..., Environment]:
    if kind in ENVIRONMENTS:
        return ENVIRONMENTS[kind]
    offered = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    if kind in offered:
        return _callable(offered[kind].load(), kind)
    if ":" in kind:
        return _callable(_imported(kind), kind)
    known = [*ENVIRONMENTS, *sorted(offered)]
    nearest = get_close_matches(kind, known, n=1, cutoff=0.0)[0]
    raise ConfigError(f"environment kind {kind!r} is unknown, did you mean {nearest!r}? Known: {', '.join(known)}, or module:Class")


def _imported(kind: str) -> object:
    module_name, _, attribute = kind.partition(":")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"environment kind {kind!r} cannot be imported: {error}") from error


def _callable(found: object, kind: str) -> Callable[..., Any]:
    if not callable(found):
        raise ConfigError(f"environment kind {kind!r} is {found!r}, which makes nothing")
    return found
