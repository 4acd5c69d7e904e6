"""Loads a Hugging Face directory for training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError

from penstock.errors import ConfigError, WeightsError
from penstock.models.tree import TREE_ATTENTION, register_tree_attention

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FAMILIES = ("llama", "qwen2", "qwen3")
"""Values of `model_type` in config.json that load."""


def load_model(directory: Path | str, *, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The causal language model in `directory`, from local safetensors only, in evaluation mode, attending over trees.

    Raises `ConfigError` for a directory that holds no model of the Llama or Qwen families, and `WeightsError` when its tensors are not exactly the
    model's (Hugging Face would fill missing ones with noise and go on).
    """
    directory = Path(directory)
    _check_config(directory)
    # Here and not above: transformers takes seconds to import, and servers that only want a digest never load a model.
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    register_tree_attention()
    disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            directory, local_files_only=True, use_safetensors=True, dtype=dtype, attn_implementation=TREE_ATTENTION, output_loading_info=True
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise WeightsError(f"the model in {directory} does not load: {error}") from error
    model, info = loaded
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info[problem]:
            raise WeightsError(f"the model in {directory} has {problem.replace('_', ' ')}: {sorted(map(str, info[problem]))[:3]}")
    loaded_model: PreTrainedModel = model
    loaded_model.train(False)
    return loaded_model


def _check_config(directory: Path) -> None:
    """Refuse early, with one sentence, what would fail late or train wrongly."""
    try:
        config = json.loads((directory / "config.json").read_text())
    except FileNotFoundError:
        raise ConfigError(f"there is no model in {directory}: it has no config.json") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{directory / 'config.json'} cannot be read: {error}") from error
    if config.get("model_type") not in FAMILIES:
        raise ConfigError(f"{directory} holds a model of type {config.get('model_type')!r}; these load: {', '.join(FAMILIES)}")
    if config.get("use_sliding_window") or "sliding_attention" in (config.get("layer_types") or ()):
        raise ConfigError(f"{directory} holds a model with sliding-window attention, which attention over trees does not know")
