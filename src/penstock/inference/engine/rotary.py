"""Rotary positions, in the same fp32 steps as the training forward takes.

A last-bit difference in a frequency grows with the position: at position 4,000 it would be seen in the fourth digit of an angle. So each operation
here is done in fp32 and in the order of the reference implementation, and not more exactly than there.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from penstock.inference.engine.architecture import Architecture, Rope


def rotations(architecture: Architecture, num_positions: int) -> Tensor:
    """(position, 1, head size / 2) complex numbers that turn a pair of channels by its angle at that position."""
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), frequencies(architecture.rope, architecture.head_size))
    return torch.complex(angles.cos(), angles.sin()).unsqueeze(1)


def frequencies(rope: Rope, head_size: int) -> Tensor:
    """Radians per position of each of the `head_size / 2` pairs, fp32."""
    plain = 1.0 / (rope.theta ** (torch.arange(0, head_size, 2).float() / head_size))
    if rope.kind == "default":
        return plain
    if rope.kind == "linear":
        return plain / rope.factor
    return _llama3(plain, rope)


def _llama3(plain: Tensor, rope: Rope) -> Tensor:
    """Slow waves are stretched by the factor, fast ones kept, those between blended."""
    wave_tokens = 2 * math.pi / plain
    longest_kept, shortest_stretched = rope.original_positions / rope.high_freq_factor, rope.original_positions / rope.low_freq_factor
    share = (rope.original_positions / wave_tokens - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blended = (1 - share) * plain / rope.factor + share * plain
    between = (wave_tokens >= longest_kept) & (wave_tokens <= shortest_stretched)
    return torch.where(between, blended, torch.where(wave_tokens > shortest_stretched, plain / rope.factor, plain))
