"""Credits: how many tokens an environment may have under way, so that all of them can be trained before they go stale."""

from __future__ import annotations

import math

from penstock.ledger.book import Ledger
from penstock.types import GroupState, Purpose


def share(ledger: Ledger, environment: str) -> float:
    """Fraction of the run's credits that `environment` has. Those that no law names share the rest equally."""
    fractions = ledger.laws.fractions
    if environment in fractions:
        return fractions[environment]
    unnamed = {name for name, purpose in ledger.counts if purpose is Purpose.TRAIN and name not in fractions} | {environment}
    return max(0.0, 1.0 - sum(fractions.values())) / len(unnamed)


def capacity(ledger: Ledger, environment: str) -> int:
    """Tokens that `environment` may have under way; where groups are counted, what that many groups cost on average."""
    if ledger.laws.credit_groups is None:
        return math.floor(ledger.laws.credit_tokens * share(ledger, environment))
    return math.floor(_group_capacity(ledger, environment) * (ledger.counts_of(environment, Purpose.TRAIN).mean_tokens or 0))


def _group_capacity(ledger: Ledger, environment: str) -> int:
    return max(1, math.floor((ledger.laws.credit_groups or 0) * share(ledger, environment) + 1e-9))


def estimate(ledger: Ledger, environment: str, first_estimate: int) -> int:
    """Tokens that the next group will probably cost: the mean of those that became ready, or the caller's first guess."""
    mean = ledger.counts_of(environment, Purpose.TRAIN).mean_tokens
    return first_estimate if mean is None else math.ceil(mean)


def fits(ledger: Ledger, environment: str, tokens: int) -> bool:
    """Whether a group of `tokens` may be opened now. The first one always may, or a run whose groups are big could never start."""
    counts = ledger.counts_of(environment, Purpose.TRAIN)
    if ledger.laws.credit_groups is not None:
        return counts.held_groups < _group_capacity(ledger, environment)
    return counts.held_tokens == 0 or counts.held_tokens + tokens <= capacity(ledger, environment)


def exhausted(ledger: Ledger, environment: str) -> bool:
    """Whether `environment` can bring no further group before something is cut: none is under way, and ready ones hold all its credits."""
    counts = ledger.counts_of(environment, Purpose.TRAIN)
    if counts.mean_tokens is None or counts.bound_groups or counts.groups[GroupState.OPEN, None] or counts.groups[GroupState.COMPLETE, None]:
        return False
    return not fits(ledger, environment, estimate(ledger, environment, 0))
