"""Filters as laws: a group that nobody may train on is dropped when it is complete, so that its credits go to another one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from penstock.batching.filters import FILTERS, GroupFacts, MemberFacts, check_filters, refusal
from penstock.errors import ConfigError, InvalidError
from penstock.ledger.book import Ledger
from penstock.types import GroupState, Laws, Purpose, RolloutRecord, RolloutStatus

FILTERED = "filtered:"
"""Reasons of drops by a filter begin so; its name follows."""


def untrainable(ledger: Ledger, rollouts: Sequence[RolloutRecord]) -> str | None:
    """Why a group of these usable members would be dropped by the filters of the run; None if somebody may train."""
    if not ledger.laws.filters:
        return None
    members = [_member(rollout) for rollout in rollouts]
    known = tuple(member for member in members if member is not None)
    if not known or len(known) < len(members):
        return None
    found = refusal(GroupFacts(members=known, newest_version=ledger.newest_version), ledger.laws.filters)
    return None if found is None else f"{FILTERED}{found}"


def strictest_lag(laws: Laws) -> int:
    """Versions that a token may be old when it is cut: what freshness allows, or less if a filter says so."""
    return min(laws.max_lag, int(laws.filters.get("staleness", {}).get("max_lag", laws.max_lag)))


def check_filter_laws(filters: Mapping[str, Mapping[str, float]]) -> None:
    """Raise `InvalidError` for filters that are not built in: what a client names must never be imported here."""
    for name in filters:
        if name not in FILTERS:
            raise InvalidError(f"laws.filters.{name}: unknown; there are {', '.join(FILTERS)}")
    try:
        check_filters(filters)
    except ConfigError as error:
        raise InvalidError(str(error).replace("algorithm.", "laws.", 1)) from None


def filtered_so_far(ledger: Ledger, environment: str | None) -> str:
    """What filters have dropped of an environment (None: of all), in words; empty if nothing."""
    dropped: Counter[str] = Counter()
    for (name, purpose), counts in ledger.counts.items():
        if purpose is Purpose.TRAIN and environment in (None, name):
            for (state, reason), count in counts.groups.items():
                if state is GroupState.DROPPED and reason is not None and reason.startswith(FILTERED):
                    dropped[reason.removeprefix(FILTERED)] += count
    return ", ".join(f"{name} {count}" for name, count in sorted((+dropped).items()))


def _member(rollout: RolloutRecord) -> MemberFacts | None:
    """None for one that came without what filters look at."""
    if rollout.reward is None or rollout.oldest_version is None:
        return None
    return MemberFacts(
        reward=rollout.reward,
        sampled_tokens=rollout.sampled_tokens,
        oldest_version=rollout.oldest_version,
        truncated=rollout.status is RolloutStatus.TRUNCATED,
    )
