from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from penstock.models import model_tensors, write_weights

torch.set_num_threads(1)

SHAPE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
}
CLASSES = {
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "llama_untied": (LlamaConfig, LlamaForCausalLM, {"tie_word_embeddings": False}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {"tie_word_embeddings": True}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 16}),
}


@pytest.fixture
def directory_of(tmp_path: Path) -> Callable[..., Path]:
    """Makes a Hugging Face directory of a family with weights large enough that every part of the model matters."""

    def make(family: str, **changes: object) -> Path:
        config_class, model_class, extra = CLASSES[family]
        torch.manual_seed(3)
        model: PreTrainedModel = model_class(config_class(**{**SHAPE, **extra, **changes}, initializer_range=0.2))
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 1:
                    parameter.uniform_(0.5, 1.5)
        directory = tmp_path / family
        directory.mkdir()
        model.config.save_pretrained(directory)
        write_weights(directory / "model.safetensors", model_tensors(model))
        return directory

    return make
