"""One update, as arithmetic: a packed batch in, new weights or a reason out. No file, no clock, no randomness.

    Learner.step(example)  =  lag (F1) -> reference's logprobs -> inputs finite? -> older versions' logprobs -> forward and backward
                              -> gate (N6) -> finite? (N1) -> AdamW

A step that is skipped leaves weights, moments and counters as they were, bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from penstock.errors import InvariantError, WeightsError
from penstock.learner.config import LearnerConfig, LossConfig, check_reference
from penstock.learner.gate import Gate, Mismatch, mismatch
from penstock.learner.losses import loss_named
from penstock.learner.optim import Moments, adamw, first_non_finite, global_norm, learning_rate, zero_moments
from penstock.learner.passes import TrainedTokens, logprobs_of, train
from penstock.learner.reference import Reference
from penstock.learner.snapshots import Snapshots, holding, set_tensors
from penstock.learner.stats import StepStats, step_stats
from penstock.models import Tensors, check_tensors, model_tensors, weights_digest
from penstock.types import Float64Array, RlExample

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["Learner", "LearnerState", "StepResult"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What came of one update."""

    kind: Literal["applied", "skipped"]
    reason: str | None = None
    """One word for a skip: `mismatch`, `non_finite` or `no_loss`."""
    cause: str = ""
    """A sentence for people: what was seen, and where."""
    digest: str = ""
    """Of the new weights; empty for a skip."""
    stats: StepStats | None = None
    """None if the step was skipped before there was anything to count."""
    mismatch: Mismatch = field(default_factory=Mismatch)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LearnerState:
    """All that a later life needs to go on as if nothing had happened."""

    weights: Tensors
    moments: Moments
    num_applied: int
    """Updates that changed the weights."""
    version: int
    """Number of the weights."""


class Learner:
    """Holds the weights that are trained and everything that an update changes.

    Making one fixes torch's arithmetic for the whole process: deterministic algorithms, `config.threads` threads. The same state and the same batch
    then give bitwise the same result in any process on the same kind of machine.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        config: LearnerConfig,
        loss: LossConfig,
        *,
        max_lag: int,
        version: int = 0,
        weights_directory: Path | None = None,
    ) -> None:
        """Train `model` (from `load_model`, taken over), whose weights are `version`. Older versions are also looked for in `weights_directory`.

        With `learner.reference: initial` its weights must be those that the run began with, also when a checkpoint is restored afterwards.
        """
        torch.use_deterministic_algorithms(True)
        # Filling fresh memory finds readers of garbage; there are none here, and it costs 5 % of a step.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        torch.set_num_threads(config.threads)
        loss_named(loss.name)
        check_reference(config, loss)
        self.config, self.loss, self.max_lag = config, loss, max_lag
        self._gate = Gate(config.gate)
        self.snapshots = Snapshots(keep=max_lag, directory=weights_directory)
        self._model = model
        # Copies of our own: the arithmetic must not depend on how a file happened to align the tensors it was read from.
        set_tensors(model, {name: tensor.clone() for name, tensor in model_tensors(model).items()})
        self.reference = Reference(config, model)
        self._moments = zero_moments(model_tensors(model))
        self._num_applied = 0
        self._version: int | None = version

    @property
    def version(self) -> int:
        """Number of the current weights. Raises `InvariantError` between an applied step and `adopt`."""
        if self._version is None:
            raise InvariantError("the newest weights have no version yet: record the outcome and adopt its version first")
        return self._version

    @property
    def weights(self) -> Tensors:
        """The current weights. They are never changed in place: a later step makes new ones."""
        return model_tensors(self._model)

    def adopt(self, version: int) -> None:
        """Name the weights that the last applied step made, with the version that `record` allocated."""
        if self._version is not None:
            raise InvariantError(f"the weights are version {self._version} already and cannot become version {version}")
        self._version = version

    def rename(self, version: int) -> None:
        """Give the current weights a version of their own: a replay came to other weights than were recorded and goes on from them."""
        self._version = version

    def step(self, example: RlExample, *, newest_version: int, gated: bool = True) -> StepResult:
        """Train on `example`, the whole batch of one update, planned when `newest_version` was the newest.

        `gated=False` leaves the comparison with the sampler out, which changes no result: for replays of updates that have passed it.

        Raises `InvariantError` (nothing changed) if a token with loss is older than `max_lag` or newer than the plan, and `WeightsError` if an older
        version's weights cannot be found. Everything else that is wrong with the numbers is a skip.
        """
        version = self.version
        _check_lag(example, newest_version, self.max_lag)
        if not example.loss_mask.any():
            return StepResult(kind="skipped", reason="no_loss", cause="no token of the batch carries loss")
        example = self.reference.scored(example)
        if (wrong := _non_finite_input(example)) is not None:
            return StepResult(kind="skipped", reason="non_finite", cause=f"{wrong} of the batch hold NaN or infinity")
        try:
            return self._update(example, version, newest_version, gated)
        finally:
            self._model.zero_grad(set_to_none=True)

    def state(self) -> LearnerState:
        """Everything a checkpoint must hold. Shares memory with the learner, which never changes tensors in place."""
        return LearnerState(weights=self.weights, moments=self._moments, num_applied=self._num_applied, version=self.version)

    def restore(self, state: LearnerState) -> None:
        """Go on from `state`. Raises `WeightsError`, with nothing changed, if it is that of another model."""
        names = self.weights.keys()
        if state.moments.first.keys() != names or state.moments.second.keys() != names:
            raise WeightsError("the optimizer's moments are those of another model")
        check_tensors(self._model, state.weights)
        set_tensors(self._model, {name: tensor.clone() for name, tensor in state.weights.items()})
        self._moments, self._num_applied, self._version = state.moments, state.num_applied, state.version

    def _update(self, example: RlExample, version: int, newest_version: int, gated: bool) -> StepResult:
        """The step itself, for a batch that was checked."""
        older_L = self._older_logprobs(example, version) if gated else None
        trained = train(self._model, example, self.config, self.loss)
        gradients = _gradients(self._model)
        loss, norm = float((trained.weights_L * trained.losses_L).sum()), global_norm(gradients)
        stats = step_stats(example, trained, loss=loss, grad_norm=norm, lr=learning_rate(self.config, self._num_applied), newest_version=newest_version)
        if not np.isfinite(loss):
            return StepResult(kind="skipped", reason="non_finite", cause=f"the loss is {loss}", stats=stats)
        found, cause = (Mismatch(), None) if older_L is None else self._agreement(example, version, trained, older_L)
        if cause is not None:
            return StepResult(kind="skipped", reason="mismatch", cause=cause, stats=stats, mismatch=found)
        if not np.isfinite(norm):
            cause = f"the gradient of {first_non_finite(gradients)} holds NaN or infinity"
            return StepResult(kind="skipped", reason="non_finite", cause=cause, stats=stats, mismatch=found)
        if (wrong := self._apply(gradients, norm, version)) is not None:
            return StepResult(kind="skipped", reason="non_finite", cause=f"the update would make {wrong} NaN or infinite", stats=stats, mismatch=found)
        return StepResult(kind="applied", digest=weights_digest(self.weights), stats=stats, mismatch=found)

    def _older_logprobs(self, example: RlExample, version: int) -> Float64Array:
        """For each token with loss that an older version sampled, that version's logprob; NaN for the others."""
        logprobs_RT = np.full(example.loss_mask.shape, np.nan)
        compared_RT = example.loss_mask & ~example.mixed_kv
        for older in np.unique(example.versions[compared_RT]).tolist():
            if older != version:
                wanted_RT = compared_RT & (example.versions == older)
                with holding(self._model, self.snapshots.get(older)):
                    logprobs_RT[wanted_RT] = logprobs_of(self._model, example, wanted_RT, self.config)
        older_L: Float64Array = logprobs_RT[example.loss_mask]
        return older_L

    def _agreement(self, example: RlExample, version: int, trained: TrainedTokens, older_L: Float64Array) -> tuple[Mismatch, str | None]:
        """How well sampler and learner agree, and what is wrong if they do not."""
        mask_RT = example.loss_mask
        compared_L = ~example.mixed_kv[mask_RT]
        versions_L = example.versions[mask_RT][compared_L]
        learner_L = np.where(versions_L == version, trained.logprobs_L[compared_L], older_L[compared_L])
        sampler_L = example.policy_logprobs[mask_RT].astype(np.float64)[compared_L]
        found = mismatch(sampler_L, learner_L, mixed_kv=int((~compared_L).sum()))
        return found, self._gate.breach(sampler_L, learner_L, versions_L)

    def _apply(self, gradients: Tensors, norm: float, version: int) -> str | None:
        """Clip and step. Returns the name of what would not be finite, and then nothing has changed."""
        if norm > self.config.clip_grad:
            gradients = {name: gradient * (self.config.clip_grad / norm) for name, gradient in gradients.items()}
        old = self.weights
        new, moments = adamw(old, gradients, self._moments, config=self.config, num_applied=self._num_applied)
        for tensors in (new, moments.first, moments.second):
            if (name := first_non_finite(tensors)) is not None:
                return name
        self.snapshots.put(version, old)
        set_tensors(self._model, new)
        self._moments, self._num_applied, self._version = moments, self._num_applied + 1, None
        return None


def _gradients(model: PreTrainedModel) -> Tensors:
    return {name: torch.zeros_like(weight) if weight.grad is None else weight.grad for name, weight in model.named_parameters()}


def _check_lag(example: RlExample, newest_version: int, max_lag: int) -> None:
    """F1, the last of its three places: raises `InvariantError` for a token with loss that is too old, or from the future."""
    lags_RT = newest_version - example.versions
    wrong_RT = example.loss_mask & ((lags_RT > max_lag) | (lags_RT < 0) | (example.versions < 0))
    if wrong_RT.any():
        row, column = np.argwhere(wrong_RT)[0].tolist()
        raise InvariantError(
            f"{int(wrong_RT.sum())} tokens with loss break the lag: the one in row {row}, column {column} has version {example.versions[row, column]}, "
            f"the plan's newest is {newest_version} and max_lag is {max_lag}",
        )


def _non_finite_input(example: RlExample) -> str | None:
    """Name of an array of the batch that holds NaN or infinity where there is loss."""
    arrays = {"advantages": example.advantages, "policy_logprobs": example.policy_logprobs, "reference_logprobs": example.reference_logprobs}
    return next((name for name, array in arrays.items() if array is not None and not np.isfinite(array[example.loss_mask]).all()), None)
