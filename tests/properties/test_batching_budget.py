"""The budget against a slow, obvious chooser, and what must hold whatever the queues."""

from collections.abc import Mapping
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.batching import Candidate, Choice, Short, choose

NAMES = ("a", "b", "c", "d")


def slow_choose(
    queues: Mapping[str, list[Candidate]], budget: int, shares: Mapping[str, Fraction], goals: Mapping[str, Fraction], spill: bool
) -> list[str] | str:
    """Rules 3 and 4 on lists, everything computed anew for each pick. The chosen ids, or the name of who is short."""
    queues = {name: [group for group in queue if group.tokens <= budget] for name, queue in queues.items()}
    goals, taken, out = dict(goals), dict.fromkeys(queues, 0), []
    stuck: set[str] = set()
    empty: set[str] = set()
    while True:
        rest = budget - sum(queues[name][index].tokens for name in queues for index in range(taken[name]))
        deficits = {name: goals[name] - sum(group.tokens for group in queues[name][: taken[name]]) for name in queues}
        able = [name for name in sorted(queues) if deficits[name] > 0 and name not in stuck | empty]
        if not able or rest == 0:
            return out
        name = max(able, key=lambda name: deficits[name])  # the first of equals, and they are sorted
        if taken[name] == len(queues[name]):
            if not spill:
                return name
            empty.add(name)
            others = [other for other in queues if other not in stuck | empty]
            total = sum(shares[other] for other in others)
            for other in others:
                goals[other] += deficits[name] * (shares[other] / total if total else Fraction(1, len(others)))
        elif queues[name][taken[name]].tokens > rest:
            stuck.add(name)
        else:
            out.append(queues[name][taken[name]].id)
            taken[name] += 1


@st.composite
def requests(draw: st.DrawFn) -> tuple[dict[str, list[Candidate]], int, dict[str, float], dict[str, float]]:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    budget = draw(st.integers(1, 60))
    queues = {name: [Candidate(f"{name}{index}", cost) for index, cost in enumerate(draw(st.lists(st.integers(1, 40), max_size=12)))] for name in names}
    eighths = draw(st.lists(st.integers(0, 8), min_size=len(names), max_size=len(names)).filter(lambda parts: 0 < sum(parts) <= 8))
    fractions = {name: part / 8 for name, part in zip(names, eighths, strict=True)}
    carry = {name: draw(st.integers(-4 * budget, 4 * budget)) / 4 for name in names}
    return queues, budget, fractions, carry


@settings(max_examples=150, deadline=None)
@given(requests(), st.booleans())
def test_the_choice_is_the_one_of_the_slow_chooser(request: tuple[dict[str, list[Candidate]], int, dict[str, float], dict[str, float]], spill: bool) -> None:
    queues, budget, fractions, carry = request
    total = sum(Fraction(fraction) for fraction in fractions.values())
    shares = {name: Fraction(fractions[name]) / total * budget for name in queues}
    goals = {name: shares[name] + Fraction(carry[name]) if shares[name] else Fraction(0) for name in queues}
    forgiven = max(Fraction(0), budget - sum(goals.values()))
    goals = {name: goal + forgiven * shares[name] / budget for name, goal in goals.items()}
    want = slow_choose(queues, budget, shares, goals, spill)
    got = choose(queues, budget_tokens=budget, fractions=fractions, carry=carry, spill=spill)
    if isinstance(want, str):
        assert isinstance(got, Short)
        assert got.environment == want
    elif not want:
        assert got == Short(environment=None, too_big=got.too_big)
    else:
        assert isinstance(got, Choice)
        assert list(got.ids) == want


@settings(max_examples=150, deadline=None)
@given(requests(), st.booleans(), st.sampled_from(["proportional", "newest", "none"]))
def test_a_choice_keeps_the_ceiling_takes_prefixes_of_queues_and_bounds_carry(
    request: tuple[dict[str, list[Candidate]], int, dict[str, float], dict[str, float]], spill: bool, unallocated: str
) -> None:
    queues, budget, fractions, carry = request
    result = choose(queues, budget_tokens=budget, fractions=fractions, carry=carry, spill=spill, unallocated=unallocated)  # type: ignore[arg-type]
    for name, queue in queues.items():
        too_big = [group.id for group in queue if group.id in result.too_big]
        assert all(group.tokens > budget for group in queue if group.id in too_big)
        if isinstance(result, Choice):
            fitting = [group for group in queue if group.tokens <= budget]
            mine = [group_id for group_id in result.ids if group_id.startswith(name)]
            assert mine == [group.id for group in fitting][: len(mine)]
            assert result.used[name] == sum(group.tokens for group in fitting[: len(mine)])
            assert abs(result.carry.get(name, 0.0)) <= budget
    if isinstance(result, Choice):
        assert result.ids
        assert sum(result.used.values()) <= budget


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.integers(1, 50), min_size=2, max_size=4),
    st.lists(st.lists(st.integers(1, 90), min_size=1, max_size=5), min_size=4, max_size=4),
    st.booleans(),
)
def test_long_run_shares_converge_to_the_fractions(weights: list[int], costs: list[list[int]], count_groups: bool) -> None:
    names = NAMES[: len(weights)]
    fractions = {name: weight / sum(weights) for name, weight in zip(names, weights, strict=True)}
    budget = 7 if count_groups else 100
    position = dict.fromkeys(names, 0)
    used = dict.fromkeys(names, 0)
    carry: Mapping[str, float] = {}
    for _ in range(60):
        queues = {
            name: [Candidate(f"{name}{index}", costs[place][index % len(costs[place])]) for index in range(position[name], position[name] + 120)]
            for place, name in enumerate(names)
        }
        size = {"num_groups": budget} if count_groups else {"budget_tokens": budget}
        result = choose(queues, fractions=fractions, carry=carry, **size)
        assert isinstance(result, Choice)
        if count_groups:
            assert len(result.ids) == budget
        carry = result.carry
        for name in names:
            position[name] += sum(group_id.startswith(name) for group_id in result.ids)
            used[name] += result.used[name]
    for name in names:
        # Never more than about two budgets away from the fair amount, so the share of many batches is the fraction.
        assert abs(used[name] - fractions[name] * sum(used.values())) <= 2 * budget, (used, fractions, carry)
