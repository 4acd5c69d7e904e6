from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType

import pytest

from penstock.batching.filters import FILTERS, GroupFacts, MemberFacts, check_filters, refusal, refusals
from penstock.errors import ConfigError


def group(*rewards: float, tokens: Sequence[int] = (), versions: Sequence[int] = (), cut_off: Sequence[int] = (), newest: int = 5) -> GroupFacts:
    members = [
        MemberFacts(
            reward=reward,
            sampled_tokens=tokens[place] if tokens else 10,
            oldest_version=versions[place] if versions else newest,
            truncated=place in cut_off,
        )
        for place, reward in enumerate(rewards)
    ]
    return GroupFacts(members=tuple(members), newest_version=newest)


def allowed(name: str, given: GroupFacts, **options: float) -> list[bool]:
    return list(FILTERS[name](given, **options))


def test_zero_variance_wants_rewards_that_differ() -> None:
    assert allowed("zero_variance", group(0.0, 0.0, 0.0)) == [False] * 3
    assert allowed("zero_variance", group(0.0, 0.0, 0.25)) == [True] * 3
    assert allowed("zero_variance", group(0.0, 0.25), min_spread=0.25) == [False] * 2
    assert allowed("zero_variance", group(0.3)) == [False]


def test_reward_range_looks_at_the_mean_and_has_both_ends_in_it() -> None:
    assert allowed("reward_range", group(0.0, 1.0), low=0.5, high=0.5) == [True, True]
    assert allowed("reward_range", group(0.0, 0.5), low=0.5) == [False, False]
    assert allowed("reward_range", group(1.0, 0.5), high=0.5) == [False, False]
    assert allowed("reward_range", group(-9.0, 99.0)) == [True, True]


def test_staleness_takes_the_whole_group_for_its_oldest_token() -> None:
    given = group(0.0, 1.0, versions=(3, 5))
    assert allowed("staleness", given, max_lag=2) == [True, True]
    assert allowed("staleness", given, max_lag=1) == [False, False]


def test_length_and_truncation_take_single_members() -> None:
    given = group(0.0, 1.0, 0.0, tokens=(64, 65, 10), cut_off=(2,))
    assert allowed("over_long", given, max_tokens=64) == [True, False, True]
    assert allowed("truncated", given) == [True, True, False]


def test_the_first_filter_that_refuses_gives_the_reason() -> None:
    given = group(0.0, 1.0, tokens=(90, 5), cut_off=(0, 1))
    assert refusals(given, {"zero_variance": {}, "over_long": {"max_tokens": 60}, "truncated": {}}) == ("over_long", "truncated")
    assert refusals(given, {}) == (None, None)


def test_a_group_is_refused_only_when_nobody_is_left_and_for_what_took_most() -> None:
    given = group(0.0, 1.0, 0.0, tokens=(90, 5, 99), cut_off=(1,))
    assert refusal(given, {"over_long": {"max_tokens": 60}}) is None
    assert refusal(given, {"truncated": {}, "over_long": {"max_tokens": 60}}) == "over_long"
    assert refusal(given, {}) is None


def test_a_filter_of_ones_own_is_named_by_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    def even(given: GroupFacts, *, every: float = 2) -> list[bool]:
        return [place % every == 0 for place in range(len(given.members))]

    module = ModuleType("somebodys_filters")
    module.even, module.short = even, lambda given: [True]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "somebodys_filters", module)
    check_filters({"somebodys_filters:even": {"every": 2}})
    assert refusals(group(0.0, 1.0, 2.0), {"somebodys_filters:even": {"every": 2}}) == (None, "somebodys_filters:even", None)
    with pytest.raises(ConfigError, match="judged 1 members of a group of 2"):
        refusals(group(0.0, 1.0), {"somebodys_filters:short": {}})
    module.number = 3  # type: ignore[attr-defined]
    for wrong, message in (("odd", "cannot be imported"), ("number", "cannot be called")):
        with pytest.raises(ConfigError, match=message):
            check_filters({f"somebodys_filters:{wrong}": {}})


@pytest.mark.parametrize(
    "filters, message",
    [
        ({"zero_varianc": {}}, "did you mean 'zero_variance'"),
        ({"over_long": {}}, "max_tokens is missing"),
        ({"truncated": {"max_tokens": 3}}, "takes no options"),
        ({"reward_range": {"lo": 0.1}}, "takes low, high"),
        ({"reward_range": {"low": float("nan")}}, "must be a number"),
        ({"over_long": {"max_tokens": 0}}, "must be 1 or more"),
        ({"reward_range": {"low": 0.9, "high": 0.1}}, "no group could pass"),
    ],
)
def test_impossible_filters_are_refused(filters: dict[str, dict[str, float]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_filters(filters)
