"""Passes of a model over a packed batch, one micro-batch at a time. What comes back is in the order of the batch, whatever the micro-batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from penstock.batching import micro_batches
from penstock.learner.config import LearnerConfig, LossConfig
from penstock.learner.denominators import token_weights
from penstock.learner.lines import Line, line_of
from penstock.learner.losses import LossInputs, TokenLosses, loss_named, penalties
from penstock.models import TokenScores, token_logprobs, token_scores, tree_hidden
from penstock.types import BoolArray, Float64Array, RlExample

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_WEIGHTS = "loss_weights"
"""Array that carries the weights of the whole update into its micro-batches."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainedTokens:
    """Tokens with loss of the whole batch, row by row."""

    logprobs_L: Float64Array
    """Under the weights before the update."""
    entropies_L: Float64Array
    losses_L: Float64Array
    """With penalties."""
    weights_L: Float64Array
    """The loss of the update is the sum of losses times weights."""
    clipped: Mapping[str, BoolArray]
    """By bound, as in `TokenLosses`."""


def train(model: PreTrainedModel, example: RlExample, config: LearnerConfig, loss: LossConfig, *, update_tokens: int | None = None) -> TrainedTokens:
    """Forward and backward over `example`, at least one token with loss. Adds to the gradients of the model's parameters.

    `example` is the whole update, or rows of it, of an update with `update_tokens` tokens with loss: gradients of all parts then add up to the update's.
    """
    weighted = replace(example, arrays={**example.arrays, _WEIGHTS: token_weights(example, loss, update_tokens=update_tokens)})
    parts = [
        _train_part(model, part, line_of(part, part.loss_mask), config, loss)
        for part in micro_batches(weighted, config.micro_batch_tokens)
        if part.loss_mask.any()
    ]
    return _joined(parts)


def assess(model: PreTrainedModel, example: RlExample, config: LearnerConfig, loss: LossConfig) -> TrainedTokens:
    """What `train` would say of `example` under the weights as they are, without gradients. At least one token with loss."""
    weighted = replace(example, arrays={**example.arrays, _WEIGHTS: token_weights(example, loss)})
    with torch.no_grad():
        return _joined(
            [
                _assess_part(part, line, _scores(model, line, config, entropy_gradient=False), loss)[0]
                for part in micro_batches(weighted, config.micro_batch_tokens)
                if part.loss_mask.any()
                for line in (line_of(part, part.loss_mask),)
            ]
        )


def assess_stored(example: RlExample, loss: LossConfig) -> TrainedTokens:
    """What `train` would say if the weights were the sampler's, from the stored logprobs alone. Entropies, which nobody stores, are NaN."""
    mask_RT = example.loss_mask
    stored_L = torch.from_numpy(example.policy_logprobs[mask_RT])
    inputs = _inputs(example, np.flatnonzero(mask_RT), stored_L, None)
    return _numbered(_penalized(inputs, loss), stored_L, torch.full_like(stored_L, torch.nan), token_weights(example, loss)[mask_RT])


def logprobs_of(model: PreTrainedModel, example: RlExample, wanted_RT: BoolArray, config: LearnerConfig) -> Float64Array:
    """Logprobs of the tokens where `wanted_RT` is true, row by row, without gradients. Only what they hang on is computed."""
    masked = replace(example, loss_mask=wanted_RT)
    with torch.no_grad():
        parts = [
            _numbers(token_logprobs(model, _predicting(model, line), line.targets_L, temperature=config.temperature))
            for part in micro_batches(masked, config.micro_batch_tokens)
            if part.loss_mask.any()
            for line in (line_of(part, part.loss_mask),)
        ]
    return np.concatenate(parts)


def _train_part(model: PreTrainedModel, part: RlExample, line: Line, config: LearnerConfig, loss: LossConfig) -> TrainedTokens:
    tokens, losses_L = _assess_part(part, line, _scores(model, line, config, entropy_gradient=loss.entropy_coef > 0), loss)
    weighted_sum = (losses_L * torch.from_numpy(tokens.weights_L).to(losses_L.dtype)).sum()
    weighted_sum.backward()  # type: ignore[no-untyped-call]
    return tokens


def _assess_part(part: RlExample, line: Line, scores: TokenScores, loss: LossConfig) -> tuple[TrainedTokens, torch.Tensor]:
    """What is known of the tokens of a micro-batch, and their losses with the gradient."""
    losses = _penalized(_inputs(part, line.places_L, scores.logprobs_T, scores.entropies_T), loss)
    weights_L = part.arrays[_WEIGHTS].reshape(-1)[line.places_L]
    return _numbered(losses, scores.logprobs_T, scores.entropies_T, weights_L), losses.losses_L


def _scores(model: PreTrainedModel, line: Line, config: LearnerConfig, *, entropy_gradient: bool) -> TokenScores:
    return token_scores(model, _predicting(model, line), line.targets_L, temperature=config.temperature, entropy_gradient=entropy_gradient)


def _predicting(model: PreTrainedModel, line: Line) -> torch.Tensor:
    """Hidden states that predict the tokens to be scored."""
    return tree_hidden(model, line.ids_T, line.positions_T, line.layout)[line.predictors_L]


def _inputs(part: RlExample, places_L: npt.NDArray[np.int64], logprobs_L: torch.Tensor, entropies_L: torch.Tensor | None) -> LossInputs:
    def at_places(values_RT: npt.NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(values_RT.reshape(-1)[places_L])

    return LossInputs(
        logprobs_L=logprobs_L,
        behaviour_logprobs_L=at_places(part.policy_logprobs),
        advantages_L=at_places(part.advantages),
        sample_ids_L=at_places(part.sample_ids),
        reference_logprobs_L=None if part.reference_logprobs is None else at_places(part.reference_logprobs),
        entropies_L=entropies_L,
    )


def _penalized(inputs: LossInputs, loss: LossConfig) -> TokenLosses:
    losses = loss_named(loss.name)(inputs, loss)
    added_L = penalties(inputs, loss)
    return losses if added_L is None else replace(losses, losses_L=losses.losses_L + added_L)


def _numbered(losses: TokenLosses, logprobs_L: torch.Tensor, entropies_L: torch.Tensor, weights_L: Float64Array) -> TrainedTokens:
    return TrainedTokens(
        logprobs_L=_numbers(logprobs_L),
        entropies_L=_numbers(entropies_L),
        losses_L=_numbers(losses.losses_L),
        weights_L=weights_L,
        clipped={bound: where_L.numpy() for bound, where_L in losses.clipped.items()},
    )


def _joined(parts: Sequence[TrainedTokens]) -> TrainedTokens:
    return TrainedTokens(
        logprobs_L=np.concatenate([part.logprobs_L for part in parts]),
        entropies_L=np.concatenate([part.entropies_L for part in parts]),
        losses_L=np.concatenate([part.losses_L for part in parts]),
        weights_L=np.concatenate([part.weights_L for part in parts]),
        clipped={bound: np.concatenate([part.clipped[bound] for part in parts]) for bound in parts[0].clipped},
    )


def _numbers(values_L: torch.Tensor) -> Float64Array:
    return values_L.detach().double().numpy()
