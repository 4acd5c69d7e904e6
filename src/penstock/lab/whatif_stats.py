"""What filters, credit and loss come to under two settings, as numbers. Pure: from samples to tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from penstock.trace import facts
from penstock.types import Float64Array, Group, Sample

BINS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class LossStats:
    """Of all tokens with loss. *Ratio*: probability under the weights that are asked over the sampler's; 1 everywhere with the stored logprobs."""

    loss: float
    """Mean over updates; of an environment, what its tokens add to it."""
    clip_frac: float
    clip_fracs: Mapping[str, float]
    ratio_mean: float
    ratio_min: float
    ratio_max: float
    kl_k1: float
    kl_k2: float
    kl_k3: float
    kl_reference: float | None
    entropy: float | None
    """None with the stored logprobs, which do not tell it."""
    effective_sample_size: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Filtered:
    """What one filter refuses. Beside the lengths of those that are used it shows whether it prefers short ones."""

    rollouts: int
    length: float | None
    """Mean number of sampled tokens."""
    longest: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingStats:
    """What one setting makes of some groups. Numbers about nothing are None."""

    updates: int
    """Plans of which something is left to train on."""
    groups: int
    rollouts: int
    """Members that no filter refuses."""
    length: float | None
    """Mean number of sampled tokens of those members."""
    longest: int | None
    filtered: Mapping[str, Filtered]
    """Members that carry no loss, by filter."""
    tokens: int
    """With loss."""
    injected_tokens: int
    """Those of them that nobody sampled."""
    advantage_mean: float | None
    """This and the next three: over tokens with loss."""
    advantage_std: float | None
    advantage_min: float | None
    advantage_max: float | None
    zero_rollouts: float | None
    """Share of the rollouts with loss whose every token has advantage 0: they teach nothing."""
    zero_tokens: float | None
    loss: LossStats | None = None
    """None without torch, or without a token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Tokens with loss by advantage, under both settings; `edges` has one more entry than there are bins."""

    edges: tuple[float, ...]
    as_run: tuple[int, ...]
    changed: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two settings over the same groups."""

    environment: str | None
    """None: all of them."""
    planned_groups: int
    planned_rollouts: int
    as_run: SettingStats
    changed: SettingStats
    tokens_in_both: int
    """Tokens that carry loss under both settings."""
    correlation: float | None
    """Of their advantages; None if one setting gives all of them the same."""
    sign_agreement: float | None
    """Share of them whose advantages are both above, both below or both exactly 0."""
    histogram: Histogram | None
    """None if no token has loss."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Selected:
    """One plan under one setting."""

    groups: tuple[Group, ...]
    refused: Mapping[str, str]
    samples: tuple[Sample, ...]
    injected_tokens: Mapping[str, int] = field(default_factory=dict)
    """By environment."""

    def of(self, environment: str) -> Selected:
        """What is one environment's."""
        groups = tuple(group for group in self.groups if group.environment == environment)
        samples = tuple(sample for sample in self.samples if sample.environment == environment)
        injected = {environment: self.injected_tokens.get(environment, 0)}
        return Selected(groups=groups, refused=self.refused, samples=samples, injected_tokens=injected)


def setting_stats(planned: Sequence[Sequence[Group]], selected: Sequence[Selected], loss: LossStats | None) -> SettingStats:
    """What one setting made of the planned groups, plan by plan."""
    lengths: dict[str | None, list[int]] = {None: []}
    for groups, one in zip(planned, selected, strict=True):
        for rollout in (rollout for group in groups for rollout in group.rollouts):
            lengths.setdefault(one.refused.get(rollout.rollout_uid), []).append(facts(rollout).sampled_tokens)
    used = lengths.pop(None)
    advantages_L = _advantages(selected)
    by_rollout: dict[tuple[int, str], bool] = {}
    for number, sample in _samples(selected):
        if sample.loss_mask.any():
            key = number, sample.rollout_uid
            by_rollout[key] = by_rollout.get(key, True) and not sample.advantages[sample.loss_mask].any()
    some = len(advantages_L) > 0
    return SettingStats(
        updates=sum(any(sample.loss_mask.any() for sample in one.samples) for one in selected),
        groups=sum(len(one.groups) for one in selected),
        rollouts=len(used),
        length=sum(used) / len(used) if used else None,
        longest=max(used, default=None),
        filtered={str(name): Filtered(rollouts=len(own), length=sum(own) / len(own), longest=max(own)) for name, own in sorted(lengths.items(), key=str)},
        tokens=len(advantages_L),
        injected_tokens=sum(sum(one.injected_tokens.values()) for one in selected),
        advantage_mean=float(advantages_L.mean()) if some else None,
        advantage_std=float(advantages_L.std()) if some else None,
        advantage_min=float(advantages_L.min()) if some else None,
        advantage_max=float(advantages_L.max()) if some else None,
        zero_rollouts=sum(by_rollout.values()) / len(by_rollout) if by_rollout else None,
        zero_tokens=float((advantages_L == 0).mean()) if some else None,
        loss=loss,
    )


def compare(
    environment: str | None,
    planned: Sequence[Sequence[Group]],
    as_run: Sequence[Selected],
    changed: Sequence[Selected],
    losses: tuple[LossStats | None, LossStats | None],
) -> Comparison:
    """Both settings over the groups of an environment, or over all."""
    if environment is not None:
        planned = [[group for group in groups if group.environment == environment] for groups in planned]
        as_run, changed = [one.of(environment) for one in as_run], [one.of(environment) for one in changed]
    ours_B, others_B = _common(as_run, changed)
    return Comparison(
        environment=environment,
        planned_groups=sum(map(len, planned)),
        planned_rollouts=sum(len(group.rollouts) for groups in planned for group in groups),
        as_run=setting_stats(planned, as_run, losses[0]),
        changed=setting_stats(planned, changed, losses[1]),
        tokens_in_both=len(ours_B),
        correlation=_correlation(ours_B, others_B),
        sign_agreement=float((np.sign(ours_B) == np.sign(others_B)).mean()) if len(ours_B) else None,
        histogram=_histogram(_advantages(as_run), _advantages(changed)),
    )


def _samples(selected: Sequence[Selected]) -> list[tuple[int, Sample]]:
    return [(number, sample) for number, one in enumerate(selected) for sample in one.samples]


def _advantages(selected: Sequence[Selected]) -> Float64Array:
    """Of all tokens with loss."""
    return np.concatenate([np.zeros(0), *(sample.advantages[sample.loss_mask] for _, sample in _samples(selected))]).astype(np.float64)


def _common(as_run: Sequence[Selected], changed: Sequence[Selected]) -> tuple[Float64Array, Float64Array]:
    """Advantages of the tokens with loss under both settings, in the same order."""
    others = {(number, sample.rollout_uid, sample.path): sample for number, sample in _samples(changed)}
    ours_B, others_B = [np.zeros(0)], [np.zeros(0)]
    for number, sample in _samples(as_run):
        other = others.get((number, sample.rollout_uid, sample.path))
        if other is not None:
            both = sample.loss_mask & other.loss_mask
            ours_B.append(sample.advantages[both].astype(np.float64))
            others_B.append(other.advantages[both].astype(np.float64))
    return np.concatenate(ours_B), np.concatenate(others_B)


def _correlation(ours_B: Float64Array, others_B: Float64Array) -> float | None:
    if len(ours_B) < 2 or np.ptp(ours_B) == 0 or np.ptp(others_B) == 0:
        return None
    return float(np.corrcoef(ours_B, others_B)[0, 1])


def _histogram(ours_L: Float64Array, others_L: Float64Array) -> Histogram | None:
    both = np.concatenate([ours_L, others_L])
    if not len(both):
        return None
    edges = np.histogram_bin_edges(both, BINS)
    counts = [tuple(map(int, np.histogram(values_L, edges)[0])) for values_L in (ours_L, others_L)]
    return Histogram(edges=tuple(map(float, edges)), as_run=counts[0], changed=counts[1])
