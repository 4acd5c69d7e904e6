"""Tensors in the form the forward pass wants them: what is multiplied together is stored together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.errors import WeightsError
from penstock.inference.engine.architecture import Architecture


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layer:
    """Tensors of one decoder layer. All matrices are (out, in)."""

    attention_norm: Tensor
    qkv: Tensor
    """Query, key and value heads one below the other. Inside a query or key head, the two halves that rotate together are interleaved."""
    qkv_bias: Tensor | None
    qk_norm: Tensor | None
    """(query heads + key heads, head size), interleaved as `qkv` is."""
    output: Tensor
    output_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    """Gate above up."""
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Weights:
    """A set of weights, ready to compute with."""

    architecture: Architecture
    embedding: Tensor
    layers: tuple[Layer, ...]
    final_norm: Tensor
    head: Tensor


def check_tensors(tensors: Mapping[str, Tensor], architecture: Architecture) -> None:
    """`WeightsError` unless names, shapes and dtype are those of `architecture` in fp32 and every number is finite."""
    shapes = architecture.shapes()
    missing, foreign = sorted(shapes.keys() - tensors.keys()), sorted(tensors.keys() - shapes.keys())
    if missing or foreign:
        raise WeightsError(f"tensors do not fit the model: {_some('missing', missing)}{_some('unknown', foreign)}")
    for name, shape in shapes.items():
        tensor = tensors[name]
        if tuple(tensor.shape) != shape:
            raise WeightsError(f"tensor {name} has shape {tuple(tensor.shape)}, the model wants {shape}")
        if tensor.dtype != torch.float32:
            raise WeightsError(f"tensor {name} is {str(tensor.dtype).removeprefix('torch.')}, the model is served in float32")
        if not bool(torch.isfinite(tensor).all()):
            raise WeightsError(f"tensor {name} holds NaN or infinity")


def _some(word: str, names: list[str]) -> str:
    if not names:
        return ""
    return f"{len(names)} {word} (first {names[0]!r}) "


def pack(tensors: Mapping[str, Tensor], architecture: Architecture) -> Weights:
    """Packed weights from checked tensors. Copies what it rearranges; keeps the rest, so the caller must not change them afterwards."""
    embedding = tensors["model.embed_tokens.weight"]
    return Weights(
        architecture=architecture,
        embedding=embedding,
        layers=tuple(_layer(tensors, architecture, f"model.layers.{layer}.") for layer in range(architecture.num_layers)),
        final_norm=tensors["model.norm.weight"],
        head=embedding if architecture.tied else tensors["lm_head.weight"],
    )


def _layer(tensors: Mapping[str, Tensor], architecture: Architecture, here: str) -> Layer:
    def joined(names: tuple[str, ...], kind: str) -> Tensor | None:
        parts = [tensors.get(f"{here}{name}.{kind}") for name in names]
        present = [
            _interleaved(part, architecture.head_size) if name.endswith(("q_proj", "k_proj")) else part
            for name, part in zip(names, parts, strict=True)
            if part is not None
        ]
        return torch.cat(present) if present else None

    attention, mlp = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), ("mlp.gate_proj", "mlp.up_proj")
    qkv, gate_up = joined(attention, "weight"), joined(mlp, "weight")
    assert qkv is not None and gate_up is not None
    return Layer(
        attention_norm=tensors[here + "input_layernorm.weight"],
        qkv=qkv,
        qkv_bias=joined(attention, "bias"),
        qk_norm=_qk_norm(tensors, architecture, here) if architecture.qk_norm else None,
        output=tensors[here + "self_attn.o_proj.weight"],
        output_bias=tensors.get(here + "self_attn.o_proj.bias"),
        mlp_norm=tensors[here + "post_attention_layernorm.weight"],
        gate_up=gate_up,
        gate_up_bias=joined(mlp, "bias"),
        down=tensors[here + "mlp.down_proj.weight"],
        down_bias=tensors.get(here + "mlp.down_proj.bias"),
    )


def _interleaved(rows: Tensor, head_size: int) -> Tensor:
    """Reorder the rows of each head from (first half, second half) to pairs.

    A pair is then one complex number, so that a rotation is one multiplication. Queries and keys are reordered alike, so their products stay the same.
    """
    heads = rows.view(-1, 2, head_size // 2, *rows.shape[1:])
    return heads.transpose(1, 2).flatten(0, 2)


def _qk_norm(tensors: Mapping[str, Tensor], architecture: Architecture, here: str) -> Tensor:
    query = _interleaved(tensors[here + "self_attn.q_norm.weight"], architecture.head_size)
    key = _interleaved(tensors[here + "self_attn.k_norm.weight"], architecture.head_size)
    return torch.cat([query.expand(architecture.num_heads, -1), key.expand(architecture.num_kv_heads, -1)])
