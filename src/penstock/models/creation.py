"""Makes small models from nothing, so that everything runs without a download."""

from __future__ import annotations

import os
import shutil
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from penstock.chat import BOS_ID, EOS_ID, PAD_ID, write_byte_tokenizer
from penstock.errors import ConfigError
from penstock.models.weights import model_tensors, sync, write_weights

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

SIZES: dict[str, tuple[int, int, int, int]] = {
    "nano": (128, 384, 3, 4),
    "tiny": (256, 768, 4, 4),
    "small": (512, 1408, 8, 8),
    "medium": (768, 2048, 12, 12),
}
"""Hidden size, MLP size, layers, heads: 0.7, 3.5, 26 and 85 million parameters."""

VOCABULARY = 512
"""Bytes, special tokens, and room for more."""


def init_model(directory: Path | str, *, size: str = "nano", template: str = "chatml", seed: int = 0, max_positions: int = 4096) -> None:
    """Make `directory` a Hugging Face model with random weights (a function of size and seed) and a byte-level tokenizer with chat template.

    The directory appears whole or not at all. Raises `ConfigError` if it exists or if the size is unknown.
    """
    directory = Path(directory)
    if size not in SIZES:
        nearest = get_close_matches(size, SIZES, n=1)
        raise ConfigError(f"unknown model size {size!r}{f', did you mean {nearest[0]!r}' if nearest else ''}; sizes: {', '.join(SIZES)}")
    if directory.exists():
        raise ConfigError(f"{directory} exists; a new model needs a new directory")
    model = new_model(size, seed=seed, max_positions=max_positions)
    temporary = directory.with_name(f".{directory.name}.{os.getpid()}.tmp")
    try:
        temporary.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(f"cannot make {directory}: {error.strerror}") from None
    try:
        save_model(temporary, model)
        write_byte_tokenizer(temporary, template, vocab_size=VOCABULARY)
        temporary.replace(directory)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    sync(directory.parent)


def new_model(size: str, *, seed: int = 0, max_positions: int = 4096) -> LlamaForCausalLM:
    """A Llama-shaped model with random weights; leaves torch's own generator as it was."""
    from transformers import LlamaConfig, LlamaForCausalLM

    hidden, mlp, layers, heads = SIZES[size]
    config = LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=mlp,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=max_positions,
        tie_word_embeddings=True,
        pad_token_id=PAD_ID,
        eos_token_id=EOS_ID,
        bos_token_id=BOS_ID,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)  # type: ignore[no-untyped-call]


def save_model(directory: Path, model: LlamaForCausalLM) -> None:
    """Write config.json and model.safetensors of `model` into `directory`."""
    model.config.save_pretrained(directory)
    write_weights(directory / "model.safetensors", model_tensors(model))
