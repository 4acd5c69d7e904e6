"""What `/start_rollout` is told, from JSON to what a generator gets: numbers that came as texts are numbers, what is left out has its default, what
nobody knows is kept."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from penstock.errors import InvalidError

DEFAULT_EPOCHS = 10
MAX_PROCESSES = 1024
_WHOLE = {
    "num_repeat_per_sample": (1, 2**20),
    "num_epoch": (1, 2**31),
    "num_process": (1, MAX_PROCESSES),
    "group_size": (1, 2**20),
    "max_buffer_size": (1, 2**62),
}
_RATIOS = ("min_valid_group_size_ratio", "min_valid_item_size_ratio", "min_timeout_group_size_ratio")
_SAMPLING_WHOLE = ("max_tokens", "max_completion_tokens", "top_k", "min_tokens", "seed", "n")
_SAMPLING_NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadDefaults:
    """What a server adds to a payload that leaves it out."""

    data_root: Path
    """`input_file` must lie under it, and is looked for there."""
    buffer_url: str = ""
    group_size: int | None = None


def read_payload(payload: Mapping[str, Any], defaults: PayloadDefaults) -> dict[str, Any]:
    """The payload as a generator gets it. Raises `InvalidError` that names the key."""
    data = {"num_epoch": DEFAULT_EPOCHS, "skip_instance_ids": [], "sampling_params": {}} | {key: value for key, value in payload.items() if value is not None}
    data.setdefault("remote_buffer_url", defaults.buffer_url)
    if "num_repeat_per_sample" not in data:
        data["num_repeat_per_sample"] = data.get("group_size", defaults.group_size)
    if not isinstance(data.get("task_type"), str):
        raise InvalidError(f"task_type must be a text, got {_shown(data.get('task_type'))}")
    for key in ("remote_engine_url", "remote_buffer_url"):
        data[key] = _url(key, data.get(key))
    for key, (low, high) in _WHOLE.items():
        if key in data:
            data[key] = _whole(key, data[key], low, high)
    for key in _RATIOS:
        if key in data:
            data[key] = _number(key, data[key], 0.0, 1.0)
    if "group_timeout_seconds" in data:
        data["group_timeout_seconds"] = _number("group_timeout_seconds", data["group_timeout_seconds"], 0.0, math.inf)
    data["sampling_params"] = _sampling_params(data["sampling_params"])
    data["skip_instance_ids"] = _ids(data["skip_instance_ids"])
    if data.get("input_file"):
        data["input_file"] = _input_file(data["input_file"], defaults.data_root)
    return data


def _sampling_params(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidError(f"sampling_params must be an object, got {_shown(value)}")
    params = dict(value)
    for name in _SAMPLING_WHOLE:
        if isinstance(params.get(name), str):
            params[name] = _whole(f"sampling_params.{name}", params[name], -(2**63), 2**63)
    for name in _SAMPLING_NUMBERS:
        if isinstance(params.get(name), str):
            params[name] = _number(f"sampling_params.{name}", params[name], -math.inf, math.inf)
    return params


def _ids(value: Any) -> list[str | int]:
    if not isinstance(value, list) or not all(isinstance(id, (str, int)) and not isinstance(id, bool) for id in value):
        raise InvalidError(f"skip_instance_ids must be a list of texts or integers, got {_shown(value)}")
    return list(value)


def _url(key: str, value: Any) -> str:
    parts = urlsplit(value) if isinstance(value, str) and value.isprintable() else None
    if parts is None or parts.scheme not in ("http", "https") or not parts.netloc:
        raise InvalidError(f"{key} must be a URL that starts with http:// or https://, got {_shown(value)}")
    return str(value)


def _input_file(value: Any, data_root: Path) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise InvalidError(f"input_file must be the name of a file, got {_shown(value)}")
    try:
        root, path = data_root.resolve(), (data_root / value).resolve()
        if not path.is_relative_to(root):
            raise InvalidError("input_file must lie under the data root that the buffer was started with (--data-root)")
        if not path.is_file():
            raise InvalidError(f"there is no file {_shown(value)} under the data root")
    except OSError as error:
        raise InvalidError(f"input_file {_shown(value)} cannot be looked at: {error.strerror}") from None
    return str(path)


def _whole(key: str, value: Any, low: int, high: int) -> int:
    try:
        number = int(value) if isinstance(value, (int, str)) and not isinstance(value, bool) else None
    except ValueError:
        number = None
    if isinstance(value, float) and value.is_integer():
        number = int(value)
    if number is None or not low <= number <= high:
        raise InvalidError(f"{key} must be an integer in {low}..{high}, got {_shown(value)}")
    return number


def _number(key: str, value: Any, low: float, high: float) -> float:
    try:
        number = float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else math.nan
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or not low <= number <= high:
        raise InvalidError(f"{key} must be a finite number from {low:g} to {high:g}, got {_shown(value)}")
    return number


def _shown(value: Any) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 80 else text[:80] + "..."
