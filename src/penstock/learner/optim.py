"""AdamW as a function: what comes out is new, what went in is untouched, so that an update happens as a whole or not at all."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from penstock.learner.config import LearnerConfig
from penstock.models import Tensors


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Moments:
    """Running means of the gradient and of its square, by name of the tensor."""

    first: Tensors
    second: Tensors


def zero_moments(weights: Mapping[str, torch.Tensor]) -> Moments:
    """Moments before the first update."""
    first, second = ({name: torch.zeros_like(tensor) for name, tensor in weights.items()} for _ in range(2))
    return Moments(first=first, second=second)


def learning_rate(config: LearnerConfig, num_applied: int) -> float:
    """Rate of the update after `num_applied` others: linear up to `config.lr`, then constant.

    >>> [round(learning_rate(LearnerConfig(lr=1.0, warmup_updates=4), n), 2) for n in (0, 1, 3, 9)]
    [0.25, 0.5, 1.0, 1.0]
    """
    return config.lr * min(1.0, (num_applied + 1) / max(1, config.warmup_updates))


def global_norm(gradients: Mapping[str, torch.Tensor]) -> float:
    """Euclidean norm of all gradients together; in double, so that large finite ones do not overflow."""
    norms = [torch.linalg.vector_norm(gradient, dtype=torch.float64) for gradient in gradients.values()]
    return float(torch.linalg.vector_norm(torch.stack(norms)))


def adamw(
    weights: Mapping[str, torch.Tensor],
    gradients: Mapping[str, torch.Tensor],
    moments: Moments,
    *,
    config: LearnerConfig,
    num_applied: int,
) -> tuple[Tensors, Moments]:
    """Weights and moments after one more update. Loshchilov and Hutter 2019, arXiv:1711.05101; rounds as torch's own does."""
    lr, (beta1, beta2) = learning_rate(config, num_applied), config.betas
    step_size = lr / (1 - beta1 ** (num_applied + 1))
    root_correction = math.sqrt(1 - beta2 ** (num_applied + 1))
    new = Moments(first={}, second={})
    new_weights: Tensors = {}
    for name, weight in weights.items():
        gradient = gradients[name]
        first = torch.lerp(moments.first[name], gradient, 1 - beta1)
        second = torch.mul(moments.second[name], beta2).addcmul_(gradient, gradient, value=1 - beta2)
        scale = second.sqrt().div_(root_correction).add_(config.eps)
        new_weights[name] = torch.mul(weight, 1 - lr * config.weight_decay).addcdiv_(first, scale, value=-step_size)
        new.first[name], new.second[name] = first, second
    return new_weights, new


def first_non_finite(tensors: Mapping[str, torch.Tensor]) -> str | None:
    """Name of a tensor that holds NaN or infinity; None if all are finite."""
    return next((name for name, tensor in tensors.items() if not bool(torch.isfinite(tensor).all())), None)
