"""Who of a group may train: filters by name, pure. `algorithm.filters` names some of them with their options.

A filter looks at the facts of one whole group and says of each member whether it may carry loss. One that may not still counts for the others:
rewards are compared with those of all who tried. A group in which nobody may carry loss is worth nothing to the learner, so

- the buffer drops it as soon as it is complete, as `filtered:<name>`, and its credits come back at once: workers sample until there are enough
  groups that teach something (dynamic sampling, Yu et al. 2025, arXiv:2503.14476);
- the learner, `penstock replay` and `whatif` apply the same filters to what they fetched, and leave it out.

    zero_variance   groups whose rewards are all alike
    reward_range    groups whose mean reward is too low or too high
    staleness       groups with a token that is too many versions old
    over_long       members with too many sampled tokens
    truncated       members that a limit has cut off
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from penstock.config.plugins import named_part
from penstock.errors import ConfigError

Filters = Mapping[str, Mapping[str, float]]
"""Options by name of the filter."""

ENTRY_POINTS = "penstock.filters"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberFacts:
    """What filters know about a member."""

    reward: float
    sampled_tokens: int
    oldest_version: int
    """Smallest version among its sampled tokens."""
    truncated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """What filters know about a group."""

    members: tuple[MemberFacts, ...]
    """Usable ones, at least one."""
    newest_version: int
    """Newest version when the question is asked; in a replay, when the group was cut."""


Filter = Callable[..., Sequence[bool]]
"""Of each member of the `GroupFacts` given, whether it may carry loss. Options are keyword-only numbers."""


def zero_variance(group: GroupFacts, *, min_spread: float = 0.0) -> Sequence[bool]:
    """All, if the largest and the smallest reward differ by more than `min_spread`; else none: there is nothing to compare.

    >>> zero_variance(GroupFacts(members=tuple(MemberFacts(reward=r, sampled_tokens=5, oldest_version=0) for r in (1.0, 1.0)), newest_version=0))
    [False, False]
    """
    rewards = [member.reward for member in group.members]
    return _all(group, max(rewards) - min(rewards) > min_spread)


def reward_range(group: GroupFacts, *, low: float = -math.inf, high: float = math.inf) -> Sequence[bool]:
    """All, if low <= mean reward <= high; else none: the problem is too hard or too easy now."""
    return _all(group, low <= math.fsum(member.reward for member in group.members) / len(group.members) <= high)


def staleness(group: GroupFacts, *, max_lag: float) -> Sequence[bool]:
    """All, if no token of any member is more than `max_lag` versions old; else none. Stricter than `freshness.max_lag`, or without effect."""
    return _all(group, group.newest_version - min(member.oldest_version for member in group.members) <= max_lag)


def over_long(group: GroupFacts, *, max_tokens: float) -> Sequence[bool]:
    """Those with at most `max_tokens` sampled tokens."""
    return [member.sampled_tokens <= max_tokens for member in group.members]


def truncated(group: GroupFacts) -> Sequence[bool]:
    """Those that ended by themselves: a reply that was cut off tells about the limit, not about the answer."""
    return [not member.truncated for member in group.members]


FILTERS: dict[str, Filter] = {
    "zero_variance": zero_variance,
    "reward_range": reward_range,
    "staleness": staleness,
    "over_long": over_long,
    "truncated": truncated,
}


_LEAST = {"min_spread": 0, "max_lag": 0, "max_tokens": 1}
"""Options of the built-in ones that have a smallest value."""


def refusals(group: GroupFacts, filters: Filters) -> tuple[str | None, ...]:
    """For each member the name of the first filter that takes its loss away; None: it trains.

    >>> members = tuple(MemberFacts(reward=r, sampled_tokens=n, oldest_version=0) for r, n in ((1.0, 5), (0.0, 90)))
    >>> refusals(GroupFacts(members=members, newest_version=0), {"zero_variance": {}, "over_long": {"max_tokens": 60}})
    (None, 'over_long')
    """
    found: list[str | None] = [None] * len(group.members)
    for name, options in filters.items():
        allowed = filter_named(name)(group, **options)
        if len(allowed) != len(found):
            raise ConfigError(f"algorithm.filters.{name} judged {len(allowed)} members of a group of {len(found)}")
        found = [refused or (None if may else name) for refused, may in zip(found, allowed, strict=True)]
    return tuple(found)


def refusal(group: GroupFacts, filters: Filters) -> str | None:
    """The filter that leaves a group with nobody to train; None if somebody may. Where several share in it, the one that took most."""
    found = refusals(group, filters)
    if None in found:
        return None
    return max(filters, key=found.count)


def filter_named(name: str) -> Filter:
    """The filter of that name: built-in, or an entry point of the group `penstock.filters`, or `module:function`. Raises `ConfigError`."""
    found = named_part(name, FILTERS, ENTRY_POINTS, key="algorithm.filters")
    if not callable(found):
        raise ConfigError(f"algorithm.filters {name!r} is {found!r}, which cannot be called")
    return cast(Filter, found)


def check_filters(filters: Filters) -> None:
    """Raise `ConfigError` for an unknown filter, and for options that a built-in one does not have, lacks, or that are NaN."""
    for name, options in filters.items():
        filter_named(name)
        for option, value in options.items():
            if math.isnan(value):
                raise ConfigError(f"algorithm.filters.{name}.{option} must be a number, got {value}")
        if name in FILTERS:
            _check_options(name, options)


def _check_options(name: str, options: Mapping[str, float]) -> None:
    known = {option: parameter for option, parameter in inspect.signature(FILTERS[name]).parameters.items() if parameter.kind is parameter.KEYWORD_ONLY}
    if unknown := [option for option in options if option not in known]:
        raise ConfigError(f"algorithm.filters.{name}.{unknown[0]} is unknown: {name} takes {', '.join(known) or 'no options'}")
    if missing := [option for option, parameter in known.items() if parameter.default is parameter.empty and option not in options]:
        raise ConfigError(f"algorithm.filters.{name}.{missing[0]} is missing: {name} needs it")
    for option, least in _LEAST.items():
        if options.get(option, least) < least:
            raise ConfigError(f"algorithm.filters.{name}.{option} must be {least} or more, got {options[option]:g}")
    if options.get("low", -math.inf) > options.get("high", math.inf):
        raise ConfigError(f"algorithm.filters.{name}.low is {options['low']:g} and high is {options['high']:g}: no group could pass")


def _all(group: GroupFacts, may: bool) -> list[bool]:
    return [may] * len(group.members)
