"""The forward pass: embedding, layers, final norm, over rows that may belong to any requests at any positions.

How a row finds the keys and values it attends to is the caller's business (`Attend`): prefill and decode differ in nothing else.

Rows never influence each other here, and the matrix products give a row the same bits whatever stands beside it, provided that there are at least
`MIN_ROWS` of them: with fewer, the library uses another kernel. So callers pad. That a seeded reply does not depend on its neighbours rests on this.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from penstock.inference.engine.architecture import Architecture
from penstock.inference.engine.packing import Layer, Weights

MIN_ROWS = 4


class Attend(Protocol):
    """Attention of one layer."""

    def __call__(self, layer: int, heads_NHD: Tensor) -> Tensor:
        """Mixed values (row, query heads * head size) for rows whose rotated query, key and value heads are given."""


def forward(weights: Weights, ids_N: Tensor, rotations_N: Tensor, attend: Attend) -> Tensor:
    """Final hidden states (row, hidden), ready for `project`."""
    architecture = weights.architecture
    x = F.embedding(ids_N, weights.embedding)
    for number, layer in enumerate(weights.layers):
        heads = _rotated_heads(layer, architecture, x, rotations_N)
        x = _add_linear(x, attend(number, heads), layer.output, layer.output_bias)
        gate_up = F.linear(_norm(x, layer.mlp_norm, architecture), layer.gate_up, layer.gate_up_bias)
        gate, up = gate_up.chunk(2, dim=1)
        x = _add_linear(x, F.silu(gate).mul_(up), layer.down, layer.down_bias)
    return _norm(x, weights.final_norm, architecture)


def project(weights: Weights, hidden_N: Tensor) -> Tensor:
    """Logits (row, vocabulary) of final hidden states."""
    num_rows = len(hidden_N)
    if num_rows < MIN_ROWS:
        hidden_N = torch.cat([hidden_N, hidden_N.new_zeros(MIN_ROWS - num_rows, hidden_N.shape[1])])
    return F.linear(hidden_N, weights.head)[:num_rows]


def _rotated_heads(layer: Layer, architecture: Architecture, x: Tensor, rotations_N: Tensor) -> Tensor:
    normed = _norm(x, layer.attention_norm, architecture)
    heads = F.linear(normed, layer.qkv, layer.qkv_bias).view(len(x), -1, architecture.head_size)
    query_and_key = heads[:, : architecture.num_heads + architecture.num_kv_heads]
    if layer.qk_norm is not None:
        query_and_key.copy_(F.rms_norm(query_and_key, (architecture.head_size,), None, architecture.norm_eps).mul_(layer.qk_norm))
    torch.view_as_complex(query_and_key.view(*query_and_key.shape[:2], -1, 2)).mul_(rotations_N)
    return heads


def _norm(x: Tensor, weight: Tensor, architecture: Architecture) -> Tensor:
    return F.rms_norm(x, (architecture.hidden_size,), weight, architecture.norm_eps)


def _add_linear(x: Tensor, inputs: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    added = torch.addmm(x, inputs, matrix.t())
    return added if bias is None else added.add_(bias)
