"""What a model directory says about its shape. Read from `config.json`; the Llama, Qwen2 and Qwen3 families."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from penstock.errors import ConfigError

Family = Literal["llama", "qwen2", "qwen3"]
FAMILIES: tuple[Family, ...] = ("llama", "qwen2", "qwen3")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """How positions turn into angles; see `rotary`."""

    theta: float = 10_000.0
    kind: Literal["default", "linear", "llama3"] = "default"
    factor: float = 1.0
    """By how much positions are stretched (`linear`), or low frequencies slowed down (`llama3`)."""
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_positions: int = 8192
    """Context that the model was first trained with (`llama3`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """Sizes and switches of a decoder. Everything the forward pass needs besides tensors."""

    family: Family
    vocab_size: int
    hidden_size: int
    mlp_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    norm_eps: float
    rope: Rope
    max_positions: int
    tied: bool
    """The head is the embedding."""
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    eos_ids: tuple[int, ...] = ()
    """Ids that end a reply, as the model's own files say."""

    @property
    def heads_per_kv(self) -> int:
        """Query heads that share one key and value head."""
        return self.num_heads // self.num_kv_heads

    @property
    def kv_floats_per_token(self) -> int:
        """Numbers that the cache keeps for one token, over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_size

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of all tensors, as Hugging Face names them; a tied head is left out."""
        hidden, mlp, query, kv = self.hidden_size, self.mlp_size, self.num_heads * self.head_size, self.num_kv_heads * self.head_size
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab_size, hidden), "model.norm.weight": (hidden,)}
        if not self.tied:
            shapes["lm_head.weight"] = (self.vocab_size, hidden)
        for layer in range(self.num_layers):
            here = f"model.layers.{layer}."
            shapes |= {here + "input_layernorm.weight": (hidden,), here + "post_attention_layernorm.weight": (hidden,)}
            if self.qk_norm:
                shapes |= {here + "self_attn.q_norm.weight": (self.head_size,), here + "self_attn.k_norm.weight": (self.head_size,)}
            linears = [
                ("self_attn.q_proj", query, hidden, self.qkv_bias),
                ("self_attn.k_proj", kv, hidden, self.qkv_bias),
                ("self_attn.v_proj", kv, hidden, self.qkv_bias),
                ("self_attn.o_proj", hidden, query, self.output_bias),
                ("mlp.gate_proj", mlp, hidden, self.mlp_bias),
                ("mlp.up_proj", mlp, hidden, self.mlp_bias),
                ("mlp.down_proj", hidden, mlp, self.mlp_bias),
            ]
            for name, rows, columns, bias in linears:
                shapes[f"{here}{name}.weight"] = (rows, columns)
                if bias:
                    shapes[f"{here}{name}.bias"] = (rows,)
        return shapes


def read_architecture(directory: Path) -> Architecture:
    """The architecture of a Hugging Face model directory. `ConfigError` if it is missing or of a kind that this engine does not compute."""
    path = directory / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"no model in {directory}: cannot read config.json ({error.strerror})") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    try:
        return _architecture(config, _eos_ids(directory, config))
    except KeyError as error:
        raise ConfigError(f"{path} lacks {error}") from error


def _architecture(config: Mapping[str, Any], eos_ids: tuple[int, ...]) -> Architecture:
    family = config["model_type"]
    if family not in FAMILIES:
        raise ConfigError(f"model_type {family!r} is not served by the embedded engine, which knows {', '.join(FAMILIES)}")
    if config.get("hidden_act", "silu") != "silu":
        raise ConfigError(f"hidden_act {config['hidden_act']!r} is not served by the embedded engine, only silu")
    if config.get("use_sliding_window"):
        raise ConfigError("use_sliding_window is not served by the embedded engine")
    num_heads = config["num_attention_heads"]
    attention_bias = bool(config.get("attention_bias", False))
    return Architecture(
        family=family,
        vocab_size=config["vocab_size"],
        hidden_size=config["hidden_size"],
        mlp_size=config["intermediate_size"],
        num_layers=config["num_hidden_layers"],
        num_heads=num_heads,
        num_kv_heads=config.get("num_key_value_heads") or num_heads,
        head_size=config.get("head_dim") or config["hidden_size"] // num_heads,
        norm_eps=config.get("rms_norm_eps", 1e-6),
        rope=_rope(config),
        max_positions=config.get("max_position_embeddings", 2048),
        tied=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=family == "qwen2" or attention_bias,
        output_bias=family != "qwen2" and attention_bias,
        mlp_bias=family == "llama" and bool(config.get("mlp_bias", False)),
        qk_norm=family == "qwen3",
        eos_ids=eos_ids,
    )


def _rope(config: Mapping[str, Any]) -> Rope:
    # Newer files hold everything in `rope_parameters`; older ones a bare `rope_theta` and, if anything is scaled, `rope_scaling`.
    settings = dict(config.get("rope_scaling") or {}) | dict(config.get("rope_parameters") or {})
    kind = settings.get("rope_type", settings.get("type", "default"))
    if kind not in ("default", "linear", "llama3"):
        raise ConfigError(f"rope type {kind!r} is not served by the embedded engine, which knows default, linear and llama3")
    return Rope(
        theta=float(settings.get("rope_theta", config.get("rope_theta", 10_000.0))),
        kind=kind,
        factor=float(settings.get("factor", 1.0)),
        low_freq_factor=float(settings.get("low_freq_factor", 1.0)),
        high_freq_factor=float(settings.get("high_freq_factor", 4.0)),
        original_positions=int(settings.get("original_max_position_embeddings", 8192)),
    )


def _eos_ids(directory: Path, config: Mapping[str, Any]) -> tuple[int, ...]:
    found = config.get("eos_token_id")
    generation = directory / "generation_config.json"
    if generation.exists():
        found = json.loads(generation.read_text(encoding="utf-8")).get("eos_token_id", found)
    if found is None:
        return ()
    return tuple(found) if isinstance(found, list) else (int(found),)
