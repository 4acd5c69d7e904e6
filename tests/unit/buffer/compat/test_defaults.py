"""The default hooks: worked out by hand, and equal to the slow and obvious way."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.buffer.compat import defaults

REWARDS = st.lists(st.one_of(st.none(), st.floats(-1, 1), st.sampled_from([0.0, 1.0])), min_size=1, max_size=8)


def item(reward: Any, **more: Any) -> dict[str, Any]:
    return {"uid": "u", "instance_id": "a", "messages": [], "reward": reward, **more}


def group(*rewards: Any) -> tuple[str, list[dict[str, Any]]]:
    return "a", [item(reward, place=place) for place, reward in enumerate(rewards)]


def test_meta_info_counts_all_and_measures_those_with_a_reward() -> None:
    meta = defaults.default_get_group_data_meta_info({"a": group(1.0, 0.0)[1], "b": group(0.5, None)[1]})
    assert meta == {
        "total_samples": 4,
        "num_groups": 2,
        "avg_group_size": 2.0,
        "avg_reward": 0.5,
        "reward_min": 0.0,
        "reward_max": 1.0,
        "reward_std": 0.5,
    }


def test_meta_info_of_nothing_and_of_one_has_no_spread() -> None:
    assert defaults.default_get_group_data_meta_info({})["avg_reward"] == 0
    assert defaults.default_get_group_data_meta_info({"a": [item(0.25)]})["reward_std"] == 0


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=50))
def test_running_statistics_equal_those_of_the_standard_library(rewards: list[float]) -> None:
    running = defaults.RunningMeta()
    for reward in rewards:
        running.add("a", reward)
    meta = running.meta_info()
    assert meta["avg_reward"] == pytest.approx(statistics.fmean(rewards), abs=1e-6)
    assert meta["reward_std"] == pytest.approx(statistics.stdev(rewards), rel=1e-6, abs=1e-6)


def test_a_group_is_valid_with_enough_items_and_unequal_rewards() -> None:
    ask = defaults.default_is_valid_group
    assert ask(group(1.0, 0.0), 2, "t") == (True, True)
    assert ask(group(1.0, 1.0), 2, "t") == (False, True)
    assert ask(group(1.0, 0.0), 3, "t") == (False, False)
    assert ask(group(1.0, None), 2, "t") == (False, True)
    assert ask(group(1.0, -1), 2, "t") == (True, True)


@pytest.mark.parametrize(
    ("reward", "kept"),
    [(0, True), (1.0, True), (True, True), (0.5, True), (-1, False), (1.5, False), (None, False), ("1", False), (float("nan"), False), (float("inf"), False)],
)
def test_the_filter_keeps_rewards_from_0_to_1(reward: Any, kept: bool) -> None:
    assert defaults.default_filter_item(item(reward), "t") is kept


def test_the_filter_wants_all_that_an_item_has() -> None:
    assert not defaults.default_filter_item({"instance_id": "a", "reward": 1.0}, "t")
    assert not defaults.default_filter_item(item(1.0, messages="text"), "t")


def test_normalized_rewards_are_centred_and_scaled_and_the_old_ones_kept() -> None:
    _, items = defaults.default_normalize_group_data(group(1.0, 0.0, 0.0, 1.0))
    assert [found["reward"] for found in items] == pytest.approx([1, -1, -1, 1], abs=1e-7)
    assert [found["raw_reward"] for found in items] == [1.0, 0.0, 0.0, 1.0]


def test_rewards_that_are_all_zero_or_none_stay_as_they_are() -> None:
    assert defaults.default_normalize_group_data(group(0.0, 0.0)) == group(0.0, 0.0)
    assert defaults.default_normalize_group_data(group(-1, None)) == group(-1, None)


def test_equal_rewards_become_zero() -> None:
    _, items = defaults.default_normalize_group_data(group(0.5, 0.5))
    assert [(found["reward"], found["raw_reward"]) for found in items] == [(0.0, 0.5), (0.0, 0.5)]


def test_a_padded_group_weighs_what_the_whole_one_would() -> None:
    _, items = defaults.default_pad_group_data(group(1.0, 2.0, 3.0), 4)
    assert [found["place"] for found in items] == [0, 1, 2, 0]
    assert [found["reward"] for found in items] == pytest.approx([2 / 3, 8 / 3, 4, 2 / 3])
    assert sum(found["reward"] for found in items) == pytest.approx(4 / 3 * 6)


def test_a_group_with_more_than_half_missing_cannot_be_padded() -> None:
    assert len(defaults.default_pad_group_data(group(1.0, 2.0), 4)[1]) == 4
    with pytest.raises(ValueError, match="1 of 4"):
        defaults.default_pad_group_data(group(1.0), 4)


@given(REWARDS, st.lists(st.booleans(), min_size=8, max_size=8), st.integers(0, 8))
def test_a_group_by_its_rewards_is_shaped_as_its_items_are(rewards: list[float | None], listed: list[bool], min_valid_items: int) -> None:
    """The slow way: each function of the original, one after the other, on items."""
    items = [item(reward, place=place, messages=[] if listed[place] else None) for place, reward in enumerate(rewards)]
    refused = [place for place, found in enumerate(items) if not defaults.default_filter_item(found, "t")]
    fast = defaults.shape(rewards, refused, 8, min_valid_items)
    kept = [found for found in items if defaults.default_filter_item(found, "t")]
    if len(kept) < min_valid_items:
        assert fast == "too_few_valid"
    elif len(kept) < 4:
        assert fast == "too_few_to_pad"
    else:
        _, slow = defaults.default_pad_group_data(defaults.default_normalize_group_data(("a", kept)), 8)
        assert not isinstance(fast, str)
        assert [place.member for place in fast] == [found["place"] for found in slow]
        as_written = [rewards[place.member] if place.reward is None else place.reward for place in fast]
        assert as_written == [found["reward"] for found in slow]
        assert [place.raw_reward for place in fast] == [found.get("raw_reward") for found in slow]
