"""From fetched groups to the samples that train: filters, then credit. What the learner's loop, `penstock replay` and `whatif` have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from penstock.batching.filters import Filters, GroupFacts, MemberFacts, refusals
from penstock.errors import InvariantError
from penstock.learner.credit import AlgorithmConfig, credit
from penstock.trace import facts
from penstock.types import Group, Plan, Rollout, RolloutStatus, Sample


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Selection:
    """What filters leave of some groups."""

    groups: tuple[Group, ...]
    """Those with somebody to train, whole: their rewards are compared with each other."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Uid of each member that carries no loss, those of groups that were left out too, and the filter that says so."""


def select(groups: Sequence[Group], filters: Filters, *, newest_version: int) -> Selection:
    """Apply `filters` to groups as they were fetched; `newest_version` is that of the plan."""
    if not filters:
        return Selection(groups=tuple(groups))
    kept: list[Group] = []
    refused: dict[str, str] = {}
    for group in groups:
        found = refusals(_facts(group, newest_version), filters)
        refused.update({rollout.rollout_uid: name for rollout, name in zip(group.rollouts, found, strict=True) if name is not None})
        if None in found:
            kept.append(group)
    return Selection(groups=tuple(kept), refused=refused)


def trained_samples(selection: Selection, plan: Plan, algorithm: AlgorithmConfig) -> list[Sample]:
    """The samples that carry loss, with their advantages, in the order of the plan. None at all if every group was left out."""
    if not selection.groups:
        return []
    return [sample for sample in credit(selection.groups, plan, algorithm) if sample.rollout_uid not in selection.refused]


def _facts(group: Group, newest_version: int) -> GroupFacts:
    return GroupFacts(members=tuple(_member(rollout) for rollout in group.rollouts), newest_version=newest_version)


def _member(rollout: Rollout) -> MemberFacts:
    counted = facts(rollout)
    if rollout.reward is None or counted.oldest_version is None:
        raise InvariantError(f"rollout {rollout.rollout_uid} was planned but has no reward, or our policy sampled nothing in it")
    return MemberFacts(
        reward=rollout.reward,
        sampled_tokens=counted.sampled_tokens,
        oldest_version=counted.oldest_version,
        truncated=rollout.status is RolloutStatus.TRUNCATED,
    )
