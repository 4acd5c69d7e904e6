"""`penstock whatif`: filters, credit and loss over a run's stored rollouts under other settings than the run's, side by side. Nothing is sampled.

plans of the run -> their groups, checked byte by byte -> select -> credit -> loss        once as the run did it, once changed
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.batching import pack
from penstock.errors import ConfigError, UnknownError
from penstock.lab.archive import Archive, opened
from penstock.lab.whatif_stats import Comparison, LossStats, Selected, compare
from penstock.learner.config import LearnerConfig
from penstock.learner.credit import AlgorithmConfig
from penstock.learner.selection import select, trained
from penstock.types import Group, Plan, RlExample

if TYPE_CHECKING:
    from penstock.learner.assess import Assessed

LAST_PLANS = 10
"""How many of a run's plans are looked at unless others are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the numbers depend on besides the rollouts."""

    algorithm: AlgorithmConfig
    learner: LearnerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """What the change comes to."""

    run: str
    first_update: int
    last_update: int
    changes: tuple[str, ...]
    """The changed settings, as `key=value`."""
    checkpoint: int | None
    """Update whose checkpoint the ratios are under; None: those of the stored logprobs, which are 1."""
    comparisons: tuple[Comparison, ...]
    """Over everything, then, if there are several, over each environment."""
    notes: tuple[str, ...]
    """What is not in the numbers."""


def whatif(
    run_dir: Path,
    model: Path,
    as_run: Settings,
    changed: Settings,
    *,
    changes: Sequence[str] = (),
    updates: tuple[int, int] | None = None,
    checkpoint: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> WhatIf:
    """Compare two settings over the plans of `updates` (first and last, both included; None: the last 10).

    `model` is read only with a `checkpoint`. Needs no torch without one; if it is not installed, loss statistics are left out. Raises `UnknownError`
    for updates or checkpoints that there are not, `CorruptError` for a rollout that is not what was planned, and `ConfigError` for an estimator
    that needs what the rollouts do not bring.
    """
    with opened(run_dir) as archive:
        first, last = _range(archive, updates)
        scorers = _scorers(archive, model, (as_run, changed), checkpoint)
        planned: list[tuple[Group, ...]] = []
        sides = (_Side(as_run, scorers[0]), _Side(changed, scorers[1]))
        for update in range(first, last + 1):
            progress(update - first, last + 1 - first)
            plan = archive.plan(update)
            planned.append(archive.fetch(plan))
            for side in sides:
                side.take(plan, planned[-1])
        progress(last + 1 - first, last + 1 - first)
        names = sorted({group.environment for groups in planned for group in groups})
        return WhatIf(
            run=archive.run,
            first_update=first,
            last_update=last,
            changes=tuple(changes),
            checkpoint=checkpoint,
            comparisons=tuple(
                compare(name, planned, sides[0].selected, sides[1].selected, (sides[0].loss(name), sides[1].loss(name)))
                for name in (None, *(names if len(names) > 1 else ()))
            ),
            notes=tuple(_notes((as_run, changed), checkpoint)),
        )


class _Side:
    """One setting, and what it made of the plans so far."""

    def __init__(self, settings: Settings, score: Callable[[RlExample], Assessed] | None) -> None:
        self._settings, self._score = settings, score
        self.selected: list[Selected] = []
        self._assessed: list[Assessed] = []

    def take(self, plan: Plan, groups: tuple[Group, ...]) -> None:
        """Filters, credit and loss of one plan."""
        algorithm = self._settings.algorithm
        selection = select(groups, algorithm.filter_options, newest_version=plan.newest_version)
        try:
            left = trained(selection, plan, algorithm)
        except ValueError as error:
            raise ConfigError(f"algorithm.adv_estimator: {algorithm.adv_estimator} cannot be applied to update {plan.update}: {error}") from error
        self.selected.append(Selected(groups=selection.groups, refused=selection.refused, samples=tuple(left.samples), injected_tokens=left.injected_tokens))
        if self._score is not None and any(sample.loss_mask.any() for sample in left.samples):
            # How wide rows are changes no number but by rounding.
            self._assessed.append(self._score(pack(left.samples, tokens_per_row=None)))

    def loss(self, environment: str | None) -> LossStats | None:
        """Over all plans."""
        if not self._assessed:
            return None
        from penstock.learner.stats import pooled_stats

        stats = pooled_stats(self._assessed, environment)
        if stats is None:
            return None
        return LossStats(
            loss=sum(_loss(assessed, environment) for assessed in self._assessed) / len(self._assessed),
            clip_frac=stats.clip_frac,
            clip_fracs=stats.clip_fracs,
            ratio_mean=stats.ratio_mean,
            ratio_min=stats.ratio_min,
            ratio_max=stats.ratio_max,
            kl_k1=stats.kl_k1,
            kl_k2=stats.kl_k2,
            kl_k3=stats.kl_k3,
            kl_reference=stats.kl_reference,
            entropy=None if stats.entropy != stats.entropy else stats.entropy,  # NaN: not known
            effective_sample_size=stats.effective_sample_size,
        )


def _loss(assessed: Assessed, environment: str | None) -> float:
    """Of one update, or what the tokens of an environment add to it."""
    from penstock.learner.stats import of_environment

    example, tokens = assessed
    return float((tokens.weights_L * tokens.losses_L)[of_environment(example, environment)].sum())


def _range(archive: Archive, updates: tuple[int, int] | None) -> tuple[int, int]:
    known = archive.ledger.next_update
    if known == 0:
        raise UnknownError(f"run {archive.run} has no update yet: there is nothing to compare")
    first, last = updates or (max(0, known - LAST_PLANS), known - 1)
    if not 0 <= first <= last < known:
        raise UnknownError(f"updates {first}-{last} are not all there: run {archive.run} has 0-{known - 1}")
    return first, last


def _scorers(archive: Archive, model: Path, settings: Sequence[Settings], checkpoint: int | None) -> list[Callable[[RlExample], Assessed] | None]:
    """For each setting, how a batch is scored; None if it cannot be."""
    if checkpoint is None:
        if find_spec("torch") is None:
            return [None for _ in settings]
        return [_under_stored(one) for one in settings]
    kept = archive.ledger.checkpoints
    if checkpoint not in kept:
        raise UnknownError(f"run {archive.run} keeps no checkpoint of update {checkpoint}; it keeps {', '.join(map(str, sorted(kept))) or 'none'}")
    if find_spec("torch") is None:
        raise ConfigError("--checkpoint computes with the model, and torch is not installed: without it the stored logprobs are used")
    from penstock.learner.assess import under_weights
    from penstock.learner.checkpoints import read_checkpoint

    state = read_checkpoint(archive.run_dir / "checkpoints", checkpoint, run=archive.run, digest=kept[checkpoint].digest).state
    with_settings = under_weights(model, state.weights, archive.ledger.versions[0].digest)
    return [with_settings(one.learner, one.algorithm.loss) for one in settings]


def _under_stored(settings: Settings) -> Callable[[RlExample], Assessed]:
    from penstock.learner.assess import under_stored

    return lambda example: under_stored(example, settings.learner, settings.algorithm.loss)


def _notes(settings: Sequence[Settings], checkpoint: int | None) -> list[str]:
    notes = ["groups that the buffer itself has dropped are in no plan: a filter that is taken away does not bring them back"]
    if checkpoint is not None:
        return notes
    if find_spec("torch") is None:
        return [*notes, "torch is not installed: loss statistics are left out"]
    notes.append("losses are under the stored logprobs: every ratio is 1 and nothing is clipped; --checkpoint N asks the weights of a checkpoint")
    if any(one.algorithm.loss.entropy_coef for one in settings):
        notes.append("the bonus for entropy is left out of the loss: it needs --checkpoint")
    if any(one.algorithm.loss.kl_coef and one.learner.reference != "stored" for one in settings):
        notes.append("the KL to the reference is left out of the loss: it needs --checkpoint")
    return notes
