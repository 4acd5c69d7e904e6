"""From fetched groups to the samples that train: filters, then credit. What the learner's loop, `penstock replay` and `whatif` have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from penstock.batching.filters import Filters, GroupFacts, MemberFacts, refusals
from penstock.errors import InvariantError
from penstock.learner.credit import AlgorithmConfig, credited
from penstock.learner.credit_rows import CreditRows
from penstock.trace import facts, injected_tokens
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trained:
    """What is left to train on."""

    samples: list[Sample]
    """Those that carry loss, with their advantages, in the order of the plan. None at all if every group was left out."""
    injected_tokens: Mapping[str, int] = field(default_factory=dict)
    """Tokens with loss that nobody sampled, by environment. Empty under an estimator that trains none."""
    thinking_steps: Mapping[str, int] = field(default_factory=dict)
    """Steps by environment, under an estimator that weighs thinking levels."""
    thinking_lacking: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Those of them that keep their episode's credit alone, by environment and reason."""


def trained(selection: Selection, plan: Plan, algorithm: AlgorithmConfig) -> Trained:
    """Give credit to what is left of a plan. Members without loss are compared with, and then left out."""
    if not selection.groups:
        return Trained(samples=[])
    given = credited(selection.groups, plan, algorithm)
    rows, is_out = given.rows, selection.refused.keys()
    steps = [(rows.rollouts[number].environment, lacking) for number, lacking in rows.thinking if rows.rollouts[number].rollout_uid not in is_out]
    return Trained(
        samples=[sample for sample in given.samples if sample.rollout_uid not in is_out],
        injected_tokens=_injected(rows, selection) if algorithm.estimator.facts.trains_injected else {},
        thinking_steps=Counter(environment for environment, _ in steps),
        thinking_lacking=Counter((environment, lacking) for environment, lacking in steps if lacking is not None),
    )


def _injected(rows: CreditRows, selection: Selection) -> dict[str, int]:
    found = dict.fromkeys((rollout.environment for rollout in rows.rollouts), 0)
    for rollout in rows.rollouts:
        if rollout.rollout_uid not in selection.refused:
            found[rollout.environment] += injected_tokens(rollout)
    return found


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
