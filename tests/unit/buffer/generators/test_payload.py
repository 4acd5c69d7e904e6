from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.buffer.compat.generators.payload import PayloadDefaults, read_payload
from penstock.errors import InvalidError

PAYLOAD: dict[str, Any] = {"task_type": "math", "remote_engine_url": "http://engine:1", "remote_buffer_url": "http://buffer:2", "num_repeat_per_sample": 4}


def read(root: Path, **changes: Any) -> dict[str, Any]:
    return read_payload(PAYLOAD | changes, PayloadDefaults(data_root=root))


def test_numbers_may_come_as_texts_and_what_nobody_knows_is_kept(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").touch()
    asked = {
        "num_repeat_per_sample": "8",
        "num_epoch": "3",
        "num_process": 2.0,
        "min_valid_group_size_ratio": "0.5",
        "group_timeout_seconds": "10",
        "sampling_params": {"max_tokens": "64", "temperature": "0.8", "top_p": 1, "stop": ["\n"], "chat_template_kwargs": {"a": 1}},
        "skip_instance_ids": ["a", 7],
        "input_file": "data.jsonl",
        "remote_eval_server_url": "http://judge",
    }
    data = read(tmp_path, **asked)
    assert (data["num_repeat_per_sample"], data["num_epoch"], data["num_process"]) == (8, 3, 2)
    assert (data["min_valid_group_size_ratio"], data["group_timeout_seconds"]) == (0.5, 10.0)
    assert data["sampling_params"] == {"max_tokens": 64, "temperature": 0.8, "top_p": 1, "stop": ["\n"], "chat_template_kwargs": {"a": 1}}
    assert (data["skip_instance_ids"], data["input_file"], data["remote_eval_server_url"]) == (["a", 7], str(tmp_path / "data.jsonl"), "http://judge")


def test_what_is_left_out_or_null_has_its_default(tmp_path: Path) -> None:
    data = read(tmp_path, num_epoch=None)
    assert (data["num_epoch"], data["skip_instance_ids"], data["sampling_params"]) == (10, [], {})
    assert "num_process" not in data
    few = {"task_type": "math", "remote_engine_url": "http://engine:1"}
    data = read_payload(few, PayloadDefaults(data_root=tmp_path, buffer_url="http://here:3", group_size=6))
    assert (data["remote_buffer_url"], data["num_repeat_per_sample"]) == ("http://here:3", 6)


@pytest.mark.parametrize(
    "changes, key",
    [
        ({"task_type": None}, "task_type"),
        ({"task_type": ["math"]}, "task_type"),
        ({"remote_engine_url": "file:///etc/passwd"}, "remote_engine_url"),
        ({"remote_engine_url": None}, "remote_engine_url .*, got nothing"),
        ({"remote_buffer_url": "http://a\nb"}, "remote_buffer_url"),
        ({"num_repeat_per_sample": 0}, "num_repeat_per_sample"),
        ({"num_repeat_per_sample": None}, "num_repeat_per_sample"),
        ({"num_epoch": True}, "num_epoch"),
        ({"num_epoch": "many"}, "num_epoch"),
        ({"num_process": 1e9}, "num_process"),
        ({"min_valid_item_size_ratio": "nan"}, "min_valid_item_size_ratio"),
        ({"sampling_params": [1]}, "sampling_params"),
        ({"sampling_params": {"max_tokens": "a few"}}, "sampling_params.max_tokens"),
        ({"skip_instance_ids": "a"}, "skip_instance_ids"),
        ({"skip_instance_ids": [None]}, "skip_instance_ids"),
        ({"input_file": 3}, "input_file"),
        ({"input_file": "a\0b"}, "input_file"),
    ],
)
def test_a_wrong_value_is_named_by_its_key(tmp_path: Path, changes: dict[str, Any], key: str) -> None:
    with pytest.raises(InvalidError, match=key):
        read(tmp_path, **changes)


@pytest.mark.parametrize("name", ["../secret.jsonl", "link.jsonl", "/etc/passwd", "absent.jsonl", ".", "x" * 5000])
def test_an_input_file_lies_under_the_data_root(tmp_path: Path, name: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "secret.jsonl").touch()
    (root / "link.jsonl").symlink_to(tmp_path / "secret.jsonl")
    with pytest.raises(InvalidError, match=r"data root|input_file") as told:
        read(root, input_file=name)
    assert str(tmp_path) not in str(told.value)
