"""Observations as text and as keys: the same for equal ones, and for no others."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Hashable, Mapping
from types import NoneType
from typing import Any

import numpy as np

_NOT_TEXT = "\x00"
"""Stands before a key of a dict that is not text, and before text that begins with it."""


def anchor_key(observation: Any) -> Hashable:
    """A hashable that is equal for equal observations and for no others. None stays None.

    Observations are text, bytes (a digest, say) or JSON-like: None, bool, int, float, str, list or tuple, dict with keys of these; also numpy values and
    dataclasses such as `Message`. Unlike in Python, 1, 1.0 and True differ, also as keys; 0.0 and -0.0 do not; the order of a dict's keys does not matter.
    TypeError for anything else.

    >>> len({anchor_key(1), anchor_key(1.0), anchor_key(True), anchor_key("1")})
    4
    >>> anchor_key({"room": "hall", "has": ["mug"]}) == anchor_key({"has": ["mug"], "room": "hall"})
    True
    """
    if observation is None or isinstance(observation, str):
        return observation
    if isinstance(observation, bytes):
        return (observation,)
    # Text stays text; what is written as JSON becomes bytes, so that the observation 1 is not the observation "1".
    return canonical_json(observation).encode("utf-8", "surrogatepass")


def canonical_json(observation: Any) -> str:
    """An observation as text, the same for equal ones and for no others.

    >>> canonical_json({"b": (1.0, True), "a": -0.0})
    '{"a":0.0,"b":[1.0,true]}'
    >>> canonical_json({1: "x"}) == canonical_json({"1": "x"})
    False
    """
    return json.dumps(_plain(observation), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _plain(value: Any) -> Any:
    """Of the types that JSON has, with keys that are text."""
    if type(value) in (str, int, bool, NoneType):
        return value
    if isinstance(value, Mapping):
        return {_plain_key(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if isinstance(value, np.ndarray):
        # Numbers need no second look: the bulk of large observations is not walked through in Python.
        return (value + 0.0).tolist() if value.dtype.kind == "f" else value.tolist() if value.dtype.kind in "iub" else _plain(value.tolist())
    if isinstance(value, np.generic) and not isinstance(value.item(), np.generic):
        return _plain(value.item())
    if isinstance(value, float):
        return float(value) + 0.0  # -0.0 becomes 0.0
    if isinstance(value, (str, int)):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    raise TypeError(f"{type(value).__name__} is not JSON-like")


def _plain_key(key: Any) -> str:
    """JSON would write the keys 1 and "1" alike."""
    if isinstance(key, str):
        return _NOT_TEXT + key if key.startswith(_NOT_TEXT) else key
    plain = _plain(key)
    if isinstance(plain, (dict, list)):
        raise TypeError(f"a dict has the key {key!r:.40}, and {type(key).__name__} as a key is not JSON-like")
    return _NOT_TEXT + json.dumps(plain)
