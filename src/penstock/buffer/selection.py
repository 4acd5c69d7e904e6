"""Which stored rollouts somebody means: by environment, state, purpose, status, and conditions on their fields such as `reward>=0.5`."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.errors import InvalidError
from penstock.types import GroupRecord, GroupState, Purpose, RolloutRecord, RolloutStatus

_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "!=": operator.ne,
    "=": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}
_CONDITION = re.compile(r"(\w+)\s*(>=|<=|!=|=|>|<)\s*(.*)", re.DOTALL)
_NUMBERS = ("reward", "member", "retry", "tokens", "sampled_tokens", "oldest_version", "newest_version", "stored_at")
_WORDS = ("uid", "group_id", "problem_id", "failure", "digest")
FIELDS = (*_NUMBERS, *_WORDS)
"""What a condition may be about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One comparison of a rollout's field with a value. A field without a value meets no condition but `!=`."""

    field: str
    comparison: str
    value: float | str

    def holds(self, rollout: RolloutRecord) -> bool:
        """Whether the rollout meets it."""
        found = getattr(rollout, self.field)
        if found is None:
            return self.comparison == "!="
        return _COMPARISONS[self.comparison](found, self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What is meant; a field that is empty excludes nothing."""

    environments: frozenset[str] = frozenset()
    states: frozenset[GroupState] = frozenset()
    purposes: frozenset[Purpose] = frozenset()
    statuses: frozenset[RolloutStatus] = frozenset()
    conditions: tuple[Condition, ...] = ()

    def takes_group(self, group: GroupRecord) -> bool:
        """Whether rollouts of the group can be meant."""
        return (
            (not self.environments or group.environment in self.environments)
            and (not self.states or group.state in self.states)
            and (not self.purposes or group.purpose in self.purposes)
        )

    def takes_rollout(self, rollout: RolloutRecord) -> bool:
        """Whether a rollout of such a group is meant."""
        return (not self.statuses or rollout.status in self.statuses) and all(condition.holds(rollout) for condition in self.conditions)


def select(
    *, environment: Sequence[str] = (), state: Sequence[str] = (), purpose: Sequence[str] = (), status: Sequence[str] = (), where: Sequence[str] = ()
) -> Selection:
    """The selection that words mean. Raises `InvalidError` naming the word that means nothing."""
    return Selection(
        environments=frozenset(environment),
        states=frozenset(_member(GroupState, word, "state") for word in state),
        purposes=frozenset(_member(Purpose, word, "purpose") for word in purpose),
        statuses=frozenset(_member(RolloutStatus, word, "status") for word in status),
        conditions=tuple(map(parse_condition, where)),
    )


def parse_condition(word: str) -> Condition:
    """`field`, comparison and value as they are typed.

    >>> parse_condition("reward>=0.5")
    Condition(field='reward', comparison='>=', value=0.5)
    """
    found = _CONDITION.fullmatch(word)
    if found is None:
        raise InvalidError(f"where: {word[:80]!r} is not FIELD, one of {' '.join(_COMPARISONS)}, and VALUE")
    field, comparison, value = found.groups()
    if field not in FIELDS:
        raise InvalidError(f"where: there is no field {field[:80]!r}; there are {', '.join(FIELDS)}")
    if field in _WORDS:
        return Condition(field=field, comparison=comparison, value=value)
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InvalidError(f"where: {field} is compared with a finite number, got {value[:80]!r}")
    return Condition(field=field, comparison=comparison, value=number)


def _member(kind: Any, word: str, name: str) -> Any:
    try:
        return kind(word)
    except ValueError:
        raise InvalidError(f"{name}: {word[:80]!r} is none of {', '.join(kind)}") from None
