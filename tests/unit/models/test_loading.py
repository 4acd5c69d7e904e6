from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from penstock.errors import ConfigError, WeightsError
from penstock.models import load_model, model_tensors, read_weights, weights_digest, write_weights


@pytest.mark.parametrize("family", ["llama", "llama_untied", "qwen2", "qwen3"])
def test_a_loaded_model_has_the_weights_of_its_file(family: str, directory_of: Callable[..., Path]) -> None:
    directory = directory_of(family)
    model = load_model(directory)
    assert weights_digest(model_tensors(model)) == weights_digest(read_weights(directory / "model.safetensors"))
    assert not model.training


def test_dtype_is_what_was_asked_for(directory_of: Callable[..., Path]) -> None:
    assert {tensor.dtype for tensor in model_tensors(load_model(directory_of("llama"), dtype=torch.float64)).values()} == {torch.float64}


def test_a_missing_directory_is_one_clear_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no model in .*nowhere: it has no config\.json"):
        load_model(tmp_path / "nowhere")


@pytest.mark.parametrize("text, word", [("{", "cannot be read"), ('{"model_type": "bert"}', "'bert'"), ("{}", "None")])
def test_what_is_no_llama_or_qwen_is_refused(tmp_path: Path, text: str, word: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=word):
        load_model(tmp_path)


def test_a_sliding_window_is_refused(directory_of: Callable[..., Path]) -> None:
    directory = directory_of("qwen2")
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "use_sliding_window": True}))
    with pytest.raises(ConfigError, match="sliding-window"):
        load_model(directory)


def test_a_missing_tensor_is_refused_and_not_filled_with_noise(directory_of: Callable[..., Path]) -> None:
    directory = directory_of("llama")
    tensors = read_weights(directory / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    write_weights(directory / "model.safetensors", tensors)
    with pytest.raises(WeightsError, match="up_proj"):
        load_model(directory)


def test_a_truncated_file_is_refused_with_a_sentence(directory_of: Callable[..., Path]) -> None:
    directory = directory_of("llama")
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(WeightsError, match="does not load"):
        load_model(directory)


def test_pickled_weights_are_not_read(directory_of: Callable[..., Path]) -> None:
    directory = directory_of("llama")
    torch.save(read_weights(directory / "model.safetensors"), directory / "pytorch_model.bin")
    (directory / "model.safetensors").unlink()
    with pytest.raises(WeightsError):
        load_model(directory)
