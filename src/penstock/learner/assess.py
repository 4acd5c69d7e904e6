"""Loss statistics of batches that are not trained on: under the sampler's own logprobs, or under the weights of a checkpoint. For `penstock whatif`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from penstock.errors import WeightsError
from penstock.learner.config import LearnerConfig, LossConfig
from penstock.learner.passes import TrainedTokens, assess, assess_stored
from penstock.learner.reference import Reference
from penstock.learner.snapshots import holding
from penstock.models import Tensors, load_model
from penstock.types import RlExample

Assessed = tuple[RlExample, TrainedTokens]
"""A batch as it was scored, and its tokens with loss."""


def under_stored(example: RlExample, config: LearnerConfig, loss: LossConfig) -> Assessed:
    """Every ratio is 1. A bonus for entropy counts 0, and so does a KL unless the rollouts bring `reference_logprobs` and the config takes them."""
    if config.reference not in (None, "stored"):
        example = replace(example, reference_logprobs=None)
    has_reference = example.reference_logprobs is not None
    return example, assess_stored(example, replace(loss, entropy_coef=0.0, kl_coef=loss.kl_coef if has_reference else 0.0))


def under_weights(model: Path, weights: Tensors, initial_digest: str) -> Callable[[LearnerConfig, LossConfig], Callable[[RlExample], Assessed]]:
    """For some settings, how a batch is scored under `weights`, those of the model in `model` or of a later version.

    Raises `WeightsError` for weights of another model, and for a KL to the initial weights if they are no longer in `model`.
    """
    loaded = load_model(model)

    def with_settings(config: LearnerConfig, loss: LossConfig) -> Callable[[RlExample], Assessed]:
        torch.set_num_threads(config.threads)
        reference = Reference(config, loaded)
        if config.reference == "initial" and reference.digest != initial_digest:
            raise WeightsError(f"learner.reference is initial, and {model} holds other weights than the run began with ({initial_digest})")

        def score(example: RlExample) -> Assessed:
            scored = reference.scored(example)
            with holding(loaded, weights):
                return scored, assess(loaded, scored, config, loss)

        return score

    return with_settings
