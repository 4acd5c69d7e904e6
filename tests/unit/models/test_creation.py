from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from penstock.chat import ChatTemplate
from penstock.errors import ConfigError
from penstock.models import init_model, load_model, model_tensors, weights_digest


def test_a_new_model_loads_here_and_in_transformers(tmp_path: Path) -> None:
    init_model(tmp_path / "nano", size="nano", template="plain")
    ours, theirs = load_model(tmp_path / "nano"), AutoModelForCausalLM.from_pretrained(tmp_path / "nano", local_files_only=True)
    assert weights_digest(model_tensors(ours)) == weights_digest(model_tensors(theirs))
    assert sum(tensor.numel() for tensor in model_tensors(ours).values()) == 705_408
    assert AutoTokenizer.from_pretrained(tmp_path / "nano", local_files_only=True).encode("sort 31>") == list(b"sort 31>")
    assert ChatTemplate.load(tmp_path / "nano").encode_text("é").tolist() == list("é".encode())


def test_weights_are_a_function_of_size_and_seed(tmp_path: Path) -> None:
    digests = []
    for number, seed in enumerate([1, 1, 2]):
        torch.manual_seed(number)
        init_model(tmp_path / str(number), size="nano", seed=seed)
        digests.append(weights_digest(model_tensors(load_model(tmp_path / str(number)))))
    assert digests[0] == digests[1] != digests[2]


def test_making_a_model_leaves_torchs_generator_alone(tmp_path: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    init_model(tmp_path / "nano", size="nano")
    assert torch.rand(1) == expected


def test_an_unknown_size_suggests_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'small'"):
        init_model(tmp_path / "x", size="smal")


def test_an_existing_directory_is_not_touched(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="exists"):
        init_model(tmp_path, size="nano")
    assert list(tmp_path.iterdir()) == []


def test_a_model_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        init_model(tmp_path / "x", size="nano", template="no such template")
    assert list(tmp_path.iterdir()) == []
