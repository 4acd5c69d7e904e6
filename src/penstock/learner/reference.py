"""The policy that a KL is measured against. Its logprobs are computed once for each update, without gradients, before anything is trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from penstock.errors import ConfigError, InvariantError
from penstock.learner.config import LearnerConfig
from penstock.learner.passes import logprobs_of
from penstock.learner.snapshots import holding
from penstock.models import Tensors, load_model, model_tensors, weights_digest
from penstock.types import Float64Array, RlExample

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Reference:
    """What `learner.reference` names: other weights for the model that is trained, or another model."""

    def __init__(self, config: LearnerConfig, model: PreTrainedModel) -> None:
        """`model` is the one that is trained, with the weights that the run begins with; they must never be changed in place.

        Raises `ConfigError` for a model of another vocabulary, and whatever `load_model` raises.
        """
        self._config, self._model = config, model
        self._initial: Tensors = model_tensors(model) if config.reference == "initial" else {}
        if config.reference not in (None, "initial", "stored"):
            self._model = load_model(Path(config.reference))
            if self._model.config.vocab_size != model.config.vocab_size:
                raise ConfigError(
                    f"learner.reference: the model in {config.reference} has {self._model.config.vocab_size} tokens, the one that is trained "
                    f"{model.config.vocab_size}"
                )

    @property
    def digest(self) -> str | None:
        """Of the weights that score; None if no model does."""
        if self._config.reference in (None, "stored"):
            return None
        return weights_digest(self._initial or model_tensors(self._model))

    def scored(self, example: RlExample) -> RlExample:
        """`example` with the reference's logprobs of its tokens with loss. Raises `InvariantError` if they should be stored in it and are not."""
        if self._config.reference is None:
            return example
        if self._config.reference == "stored":
            if example.reference_logprobs is None:
                raise InvariantError("learner.reference is stored, and the rollouts of this batch bring no reference_logprobs")
            return example
        logprobs_RT = np.zeros(example.loss_mask.shape, np.float32)
        logprobs_RT[example.loss_mask] = self._logprobs(example)
        return replace(example, reference_logprobs=logprobs_RT)

    def _logprobs(self, example: RlExample) -> Float64Array:
        if not self._initial:
            return logprobs_of(self._model, example, example.loss_mask, self._config)
        with holding(self._model, self._initial):
            return logprobs_of(self._model, example, example.loss_mask, self._config)
