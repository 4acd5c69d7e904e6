from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from penstock.errors import ConfigError, WeightsError
from penstock.inference.engine.architecture import Rope, read_architecture
from penstock.inference.engine.rotary import frequencies
from penstock.inference.weights import NotSafetensorsError, served_from_digest, served_from_model
from penstock.models import model_tensors, weights_digest, write_weights
from penstock.testing.inference import write_model


def put(directory: Path, tensors: dict[str, torch.Tensor], digest: str | None = None) -> str:
    digest = digest or weights_digest(tensors)
    write_weights(directory / f"{digest}.safetensors", tensors)
    return digest


def test_weights_are_served_under_the_digest_of_their_tensors(llama: Any, tmp_path: Path) -> None:
    digest = put(tmp_path, model_tensors(llama.other_model(1)))
    served = served_from_digest(tmp_path, llama.architecture, policy="policy", version=3, digest=digest)
    assert (served.version, served.digest) == (3, digest)


def test_a_model_directory_has_the_digest_of_the_loaded_model(llama: Any, tmp_path: Path) -> None:
    write_model(tmp_path / "model", llama.model)
    served = served_from_model(tmp_path / "model", llama.architecture, policy="policy", version=0)
    assert served.digest == weights_digest(model_tensors(llama.model))


def test_half_precision_and_a_stored_tied_head_are_taken_as_the_learner_takes_them(llama: Any, tmp_path: Path) -> None:
    tensors = {name: tensor.bfloat16() for name, tensor in model_tensors(llama.model).items()}
    write_weights(tmp_path / "model.safetensors", tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()})
    served = served_from_model(tmp_path, llama.architecture, policy="policy", version=0)
    assert served.digest == weights_digest({name: tensor.float() for name, tensor in tensors.items()})


def changed(name: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    norm = tensors["model.norm.weight"]
    return {
        "missing": {key: value for key, value in tensors.items() if key != "model.norm.weight"},
        "foreign": tensors | {"extra": torch.zeros(1)},
        "shape": tensors | {"model.norm.weight": norm[:-1].clone()},
        "dtype": tensors | {"model.norm.weight": norm.double()},
        "nan": tensors | {"model.norm.weight": norm * torch.nan},
        "infinity": tensors | {"model.norm.weight": norm * torch.inf},
    }[name]


@pytest.mark.parametrize(
    ("change", "word"),
    [("missing", "1 missing"), ("foreign", "1 unknown"), ("shape", "shape"), ("dtype", "float64"), ("nan", "NaN"), ("infinity", "NaN or inf")],
)
def test_weights_that_do_not_fit_are_refused(change: str, word: str, llama: Any, tmp_path: Path) -> None:
    digest = put(tmp_path, changed(change, model_tensors(llama.model)))
    with pytest.raises(WeightsError, match=word):
        served_from_digest(tmp_path, llama.architecture, policy="policy", version=1, digest=digest)


def test_a_file_with_other_weights_than_its_name_says_is_refused(llama: Any, tmp_path: Path) -> None:
    put(tmp_path, model_tensors(llama.model), digest="0" * 32)
    with pytest.raises(WeightsError, match="holds weights with the digest"):
        served_from_digest(tmp_path, llama.architecture, policy="policy", version=1, digest="0" * 32)


def test_truncated_pickled_and_missing_files_are_refused(llama: Any, tmp_path: Path) -> None:
    digest = put(tmp_path, model_tensors(llama.model))
    path = tmp_path / f"{digest}.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(WeightsError, match="not a whole"):
        served_from_digest(tmp_path, llama.architecture, policy="policy", version=1, digest=digest)
    torch.save({}, tmp_path / f"{'1' * 32}.safetensors")
    with pytest.raises(NotSafetensorsError):
        served_from_digest(tmp_path, llama.architecture, policy="policy", version=1, digest="1" * 32)
    for digest in ("2" * 32, "../" + "2" * 29, "/etc/passwd", ""):
        with pytest.raises(WeightsError):
            served_from_digest(tmp_path, llama.architecture, policy="policy", version=1, digest=digest)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"model_type": "gpt2"}, "gpt2"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"use_sliding_window": True}, "sliding"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "yarn"),
    ],
)
def test_models_that_are_not_computed_right_are_refused(change: dict[str, Any], word: str, llama: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(llama.model.config.to_dict() | change))
    with pytest.raises(ConfigError, match=word):
        read_architecture(tmp_path)


def test_a_directory_without_a_model_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no model in"):
        read_architecture(tmp_path)


def test_older_config_files_say_the_same_about_positions(llama: Any, tmp_path: Path) -> None:
    config = llama.model.config.to_dict()
    del config["rope_parameters"]
    scaling = {"type": "linear", "factor": 2.0}
    (tmp_path / "config.json").write_text(json.dumps(config | {"rope_theta": 5e5, "rope_scaling": scaling}))
    assert read_architecture(tmp_path).rope == Rope(theta=5e5, kind="linear", factor=2.0)


def test_llama3_positions_by_hand() -> None:
    """Head size 8 and theta 10,000 give waves of 6.3, 63, 628 and 6,283 tokens. In 200 tokens, 4 turns keep a wave, less than 1 slows it."""
    rope = Rope(theta=10_000.0, kind="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_positions=200)
    turns = 200 * 0.1 / (2 * math.pi)  # 3.18 of the second wave: it is blended
    kept = (turns - 1) / 3
    assert frequencies(rope, 8).tolist() == pytest.approx([1.0, 0.1 * (kept + (1 - kept) / 8), 0.01 / 8, 0.001 / 8])
