"""Which ready groups make up one batch: token-deficit round robin over environments. Called by `ledger.cut`, pure.

The rules, in the order they apply:

1. *Shares.* An environment gets its fraction of the budget. Those without a fraction share what is left equally (nothing, if nothing is left). What is
   then still unallocated is spread over the shares in proportion (`proportional`), goes to the newest groups of all (`newest`), or is not used (`none`).
2. *Goals.* A goal is the share plus what earlier batches left owing (`carry`, at most one budget either way). If the goals add up to less than
   the shares do (somebody who is owed has gone), the difference is forgiven in proportion to the shares: there is always a goal to serve.
3. *Serving.* Again and again the environment with the largest deficit (goal - used; ties by name) gives its next group, whole. It is done when its goal
   is met, which the last group may overdraw, or when its next group does not fit the rest of the budget: smaller ones behind it do not overtake.
   The budget is a hard ceiling; when nothing is left of it, all are done. A group bigger than the whole budget is set aside as `too_big`.
4. *Short.* An environment with an unmet goal and no ready group is short. Blocking, there is no batch. Spilling, or if it is `exhausted` (it cannot
   bring another group before this batch is cut), its unmet goal is a gift to the environments that are not yet short or stuck, in
   proportion to their shares (equally, if they have none).
5. *Newest.* After that, the unallocated share under `newest` is filled with the newest next group that fits, whosever it is.
6. *Carry.* Unmet goals and overdrafts are carried. Gifts are not: who took one owes nothing for it, and who could not use it is not owed it. When a carry
   would pass one budget, all environments forgive in proportion to their shares, so that who is behind whom is kept.

Nothing ready anywhere is `Short` too, never an empty choice. With `num_groups` every group costs 1, and a choice has exactly that many, unless all
environments are exhausted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from heapq import heapify, heappop, heappush
from math import lcm
from typing import Literal, NamedTuple

Unallocated = Literal["proportional", "newest", "none"]
Parts = dict[str, Fraction]
"""An amount of the budget by environment. Fractions, because rounded shares would not add up to the whole."""

_CARRY_STEPS = 1024
"""Carry is kept in 1024ths of a token: exact as a float, and its fractions stay short however many batches it lives through."""


class Candidate(NamedTuple):
    """A ready group."""

    id: str
    tokens: int
    """Its cost, after prefix sharing."""
    age: tuple[int, int] = (0, 0)
    """Larger is newer; only looked at when the unallocated share goes to the newest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A batch."""

    ids: tuple[str, ...]
    """In the order they were chosen; at least one."""
    used: Mapping[str, int]
    """Cost by environment, for every environment."""
    carry: Mapping[str, float]
    """What each environment is owed (or owes, below 0) in the next batch."""
    too_big: tuple[str, ...] = ()
    """Groups that were met on the way and can never fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Short:
    """There is no batch yet."""

    environment: str | None
    """Who must bring a group; None if anyone may."""
    too_big: tuple[str, ...] = ()
    """As in `Choice`: they are out of the way whether there is a batch or not."""


def choose(
    queues: Mapping[str, Iterable[Candidate]],
    *,
    budget_tokens: int | None = None,
    num_groups: int | None = None,
    fractions: Mapping[str, float] | None = None,
    unallocated: Unallocated = "proportional",
    spill: bool = False,
    exhausted: Collection[str] = (),
    carry: Mapping[str, float] | None = None,
) -> Choice | Short:
    """The next batch from ready groups by environment, each queue in the order its groups are to be taken; one of the two budgets is given.

    Of each queue no more is read than is chosen or too big, and one candidate more. The result is a function of the arguments alone. An
    environment that only `fractions` names has no ready group. ValueError: both budgets or none, a cost or budget below 1, impossible fractions.

    >>> queues = {"math": [Candidate("m1", 40), Candidate("m2", 40)], "code": [Candidate("c1", 60), Candidate("c2", 60)]}
    >>> choice = choose(queues, budget_tokens=150, fractions={"math": 0.5, "code": 0.5})
    >>> choice.ids, choice.carry
    (('c1', 'm1', 'm2'), {'code': 15.0, 'math': -5.0})
    """
    if (budget_tokens is None) == (num_groups is None):
        raise ValueError(f"one of budget_tokens and num_groups must be given, got {budget_tokens} and {num_groups}")
    budget = budget_tokens if budget_tokens is not None else num_groups
    assert budget is not None
    if budget < 1:
        raise ValueError(f"the budget must be 1 or more, got {budget}")
    names = sorted({*queues, *(fractions or {})})
    shares, unshared = _shares(names, fractions or {}, budget, unallocated)
    serving = _Serving(
        queues={name: iter(queues.get(name, ())) for name in names},
        unit_cost=num_groups is not None,
        budget=budget,
        shares=shares,
        goals=_goals(shares, carry or {}, budget),
    )
    all_exhausted = frozenset(exhausted).issuperset(names)
    short = serving.serve_goals(names if spill else exhausted) or serving.serve_newest(unshared, spill=spill or all_exhausted)
    wanted = 1 if num_groups is None or all_exhausted else sum(shares.values()) + unshared
    if short is None and (not serving.ids or sum(serving.used.values()) < wanted):
        short = Short(environment=None)
    if short is not None:
        return Short(environment=short.environment, too_big=tuple(serving.too_big))
    return Choice(ids=tuple(serving.ids), used=serving.used, carry=serving.carry(carry or {}), too_big=tuple(serving.too_big))


def _shares(names: list[str], fractions: Mapping[str, float], budget: int, unallocated: Unallocated) -> tuple[Parts, Fraction]:
    """Share of the budget by environment, and what belongs to nobody and may be filled with the newest (rule 1)."""
    for name, fraction in fractions.items():
        if not 0 <= fraction <= 1:
            raise ValueError(f"the fraction of {name} must be between 0 and 1, got {fraction}")
    # Decimals that people write (0.7, 0.333333) become the short fractions they mean; the tolerance is for sums of such.
    exact = {name: Fraction(fraction).limit_denominator(1_000_000) for name, fraction in fractions.items()}
    total = sum(exact.values(), start=Fraction(0))
    if total > 1 + Fraction(1, 1_000_000):
        raise ValueError(f"fractions add up to {float(total)}, which is more than 1: {dict(fractions)}")
    if total > 1 - Fraction(1, 1_000_000):
        exact, total = {name: fraction / total for name, fraction in exact.items()}, Fraction(1)
    unnamed = [name for name in names if name not in exact]
    for name in unnamed:
        exact[name] = (1 - total) / len(unnamed)
    if unnamed:
        total = Fraction(1)
    elif unallocated == "proportional" and total > 0:
        exact, total = {name: fraction / total for name, fraction in exact.items()}, Fraction(1)
    if names and total == 0 and unallocated != "newest":
        raise ValueError(f"no environment has a share of the budget: fractions {dict(fractions)}, unallocated {unallocated!r}")
    shares = {name: exact[name] * budget for name in names}
    return shares, (1 - total) * budget if unallocated == "newest" else Fraction(0)


def _goals(shares: Parts, carry: Mapping[str, float], budget: int) -> Parts:
    """Share plus carry by environment, never less in all than the shares (rule 2). Without a share there is no goal."""
    goals = {name: share + _bounded(Fraction(carry.get(name, 0.0)), budget) if share else Fraction(0) for name, share in shares.items()}
    forgiven = sum(shares.values()) - sum(goals.values())
    if forgiven > 0:
        total = sum(shares.values())
        goals = {name: goal + forgiven * shares[name] / total for name, goal in goals.items()}
    return goals


def _bounded(amount: Fraction, budget: int) -> Fraction:
    return max(min(amount, Fraction(budget)), Fraction(-budget))


@dataclass(slots=True, kw_only=True)
class _Serving:
    """One batch being filled."""

    queues: dict[str, Iterator[Candidate]]
    unit_cost: bool
    budget: int
    shares: Parts
    goals: Parts
    gifts: Parts = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)
    extra: dict[str, int] = field(default_factory=dict)
    """Part of `used` that came from the unallocated share."""
    ids: list[str] = field(default_factory=list)
    too_big: list[str] = field(default_factory=list)
    heads: dict[str, Candidate] = field(default_factory=dict)
    """Next group of an environment, where it has been looked at and not taken."""
    empty: set[str] = field(default_factory=set)
    """No group is left."""
    stuck: set[str] = field(default_factory=set)
    """The next group does not fit the rest; it never will in this batch."""
    rest: int = field(init=False)

    def __post_init__(self) -> None:
        self.rest = self.budget
        for name in self.queues:
            self.gifts[name] = Fraction(0)
            self.used[name] = self.extra[name] = 0

    def serve_goals(self, unawaited: Collection[str]) -> Short | None:
        """Rules 3 and 4. Short if an environment must be waited for."""
        while (short := self._serve_until_short()) is not None:
            if short not in unawaited:
                return Short(environment=short)
            self._give_away(short)
        return None

    def _serve_until_short(self) -> str | None:
        """Serve the largest deficit until all are done (None) or one has no group to give (its name)."""
        aims = {name: self.goals[name] + self.gifts[name] for name in self.queues}
        # Whole numbers of a common fraction of a token: exact like the fractions, and much cheaper to compare.
        scale = lcm(*(aim.denominator for aim in aims.values()))
        deficits = {name: int(aim * scale) - self.used[name] * scale for name, aim in aims.items()}
        heap = [(-deficit, name) for name, deficit in deficits.items() if deficit > 0 and name not in self.empty and name not in self.stuck]
        heapify(heap)
        while heap and self.rest:
            negative, name = heappop(heap)
            cost = self._take(name)
            if cost is None:
                if name in self.empty:
                    return name
            elif negative + cost * scale < 0:
                heappush(heap, (negative + cost * scale, name))
        return None

    def _give_away(self, short: str) -> None:
        """Add the unmet goal of an environment that is short to those of the others (rule 4)."""
        unmet = self.goals[short] + self.gifts[short] - self.used[short]
        others = [name for name in self.queues if name not in self.empty and name not in self.stuck]
        if not others:
            return
        total = sum(self.shares[name] for name in others)
        for name in others:
            self.gifts[name] += unmet * self.shares[name] / total if total else unmet / len(others)

    def serve_newest(self, unshared: Fraction, *, spill: bool) -> Short | None:
        """Rule 5. Short if the unallocated share is unmet and nobody has a group left."""
        while unshared > 0 and self.rest:
            able = [name for name in self.queues if name not in self.stuck and self._head(name) is not None]
            if not able:
                return Short(environment=None) if not (spill or self.stuck) else None
            name = min(able, key=lambda name: ([-part for part in self.heads[name].age], name))
            cost = self._take(name)
            if cost is not None:
                self.extra[name] += cost
                unshared -= cost
        return None

    def _take(self, name: str) -> int | None:
        """Choose the next group of an environment and give its cost; None if there is none (`empty`) or it does not fit (`stuck`)."""
        head = self._head(name)
        if head is None:
            return None
        cost = self._cost(head)
        if cost > self.rest:
            self.stuck.add(name)
            return None
        del self.heads[name]
        self.ids.append(head.id)
        self.used[name] += cost
        self.rest -= cost
        return cost

    def _head(self, name: str) -> Candidate | None:
        """Next group of an environment that is not too big; None, and `empty`, if there is none."""
        while name not in self.heads and name not in self.empty:
            candidate = next(self.queues[name], None)
            if candidate is None:
                self.empty.add(name)
            elif self._cost(candidate) > self.budget:
                self.too_big.append(candidate.id)
            else:
                self.heads[name] = candidate
        return self.heads.get(name)

    def _cost(self, candidate: Candidate) -> int:
        if candidate.tokens < 1:
            raise ValueError(f"group {candidate.id} costs {candidate.tokens} tokens; it must be 1 or more")
        return 1 if self.unit_cost else candidate.tokens

    def carry(self, before: Mapping[str, float]) -> dict[str, float]:
        """Rule 6. Environments that are not in this batch keep what they had."""
        owed = {name: self._owed(name) for name, share in self.shares.items() if share}
        served = [name for name in owed if name not in self.empty]
        # An empty queue is bounded alone: what a long absence adds up to is nobody else's to forgive.
        most = max(((owed[name] - self.budget) / self.shares[name] for name in served), default=Fraction(0))
        if most > 0:
            for name in served:
                owed[name] -= most * self.shares[name]
        kept = {name: Fraction(amount) for name, amount in before.items() if name not in self.queues}
        return {name: _rounded(_bounded(amount, self.budget)) for name, amount in sorted({**kept, **owed}.items())}

    def _owed(self, name: str) -> Fraction:
        """Goal minus what was charged for: unmet above 0, overdrawn below, and a gift settles an overdraft but is not owed itself."""
        balance = self.goals[name] - (self.used[name] - self.extra[name])
        return balance if balance >= 0 else min(Fraction(0), balance + self.gifts[name])


def _rounded(amount: Fraction) -> float:
    return round(amount * _CARRY_STEPS) / _CARRY_STEPS
