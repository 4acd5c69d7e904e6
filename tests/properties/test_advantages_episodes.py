"""Estimators on whole episodes against slow ones in exact rational arithmetic."""

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.properties.exact_advantages import (
    LARGEST,
    as_float,
    assert_close,
    assert_close_in_each_group,
    slow_grpo,
    slow_maxrl,
    slow_opo,
    slow_pass_at_k,
    slow_reinforce_pp,
    slow_slime,
)

from penstock.advantages import ESTIMATORS, RowKind, declared, dr_grpo, maxrl, opo, pass_at_k_rewards, reinforce_pp, remax, slime_normalize

finite = st.floats(allow_nan=False, allow_infinity=False)
usual = st.sampled_from([0.0, 1.0, 0.5, -1.0, 0.1, 1 / 3]) | st.floats(-100, 100)
labels = st.integers(0, 4)
rows_of_rewards = st.lists(st.tuples(finite | usual, labels), max_size=30)


@settings(max_examples=300)
@given(rows_of_rewards, st.sampled_from(["batch", "group"]), st.sampled_from([1e-6, 0.0, 1.0]), st.integers(0, 2))
@example([(LARGEST, 0), (-LARGEST, 0), (5e-324, 1), (0.0, 1)], "group", 0.0, 1)
@example([(0.1, 0), (0.1, 0), (0.1, 0), (1.0, 1), (0.0, 1)], "group", 1e-6, 1)
def test_reinforce_pp_equals_exact_arithmetic(rows: list[tuple[float, int]], baseline: str, eps: float, ddof: int) -> None:
    rewards, group = [reward for reward, _ in rows], [label for _, label in rows]
    found = reinforce_pp(rewards, group, baseline=baseline, eps=eps, ddof=ddof)
    want = slow_reinforce_pp(rewards, group, baseline, eps, ddof)
    # A group far smaller than the rest of the batch is worth nothing beside it.
    assert_close(found, want, scale=1e-9 if not want else max(map(abs, want)))


@settings(max_examples=200)
@given(rows_of_rewards)
def test_dr_grpo_equals_exact_arithmetic(rows: list[tuple[float, int]]) -> None:
    rewards, group = [reward for reward, _ in rows], [label for _, label in rows]
    assert_close_in_each_group(dr_grpo(rewards, group), slow_grpo(rewards, group, "mean_norm"), group)


@settings(max_examples=300)
@given(st.lists(st.tuples(finite | usual, labels, st.sampled_from([0, 1, 1, 7, 500]) | st.floats(0, 1e6)), max_size=30))
@example([(LARGEST, 0, 1), (-LARGEST, 0, 500), (1.0, 1, 0), (2.0, 1, 0)])
def test_opo_equals_exact_arithmetic(rows: list[tuple[float, int, float]]) -> None:
    rewards, group, lengths = ([row[place] for row in rows] for place in range(3))
    found, want = opo(rewards, group, lengths), slow_opo(rewards, group, lengths)
    # The baseline is a difference of the rewards, so it is as exact as the largest of the group.
    for label in set(group):
        members = [row for row, other in enumerate(group) if other == label]
        assert_close(found[members], [want[row] for row in members], scale=max(abs(rewards[row]) for row in members))


@settings(max_examples=300)
@given(st.lists(st.tuples(st.sampled_from([0.0, 1.0]) | st.floats(0, LARGEST, allow_nan=False), labels), max_size=30))
@example([(5e-324, 0), (0.0, 0), (LARGEST, 1), (LARGEST, 1), (0.0, 1)])
def test_maxrl_equals_exact_arithmetic_and_is_less_than_the_size_of_its_group(rows: list[tuple[float, int]]) -> None:
    rewards, group = [reward for reward, _ in rows], [label for _, label in rows]
    found = maxrl(rewards, group)
    assert_close(found, slow_maxrl(rewards, group))
    assert (np.abs(found) <= len(rows)).all()


@settings(max_examples=300)
@given(st.lists(st.tuples(st.sampled_from([0.0, 1.0, 0.5, -1.0, 2.0]) | st.floats(0, 1) | finite, labels), max_size=30))
@example([(0.5, 0), (0.5 + 1e-9, 0), (-1.0, 0)])
def test_slime_normalize_equals_exact_arithmetic(rows: list[tuple[float, int]]) -> None:
    rewards, group = [reward for reward, _ in rows], [label for _, label in rows]
    found, want = slime_normalize(rewards, group), slow_slime(rewards, group)
    inside = [row for row, reward in enumerate(rewards) if 0 <= reward <= 1]
    assert_close(found[inside], [want[row] for row in inside])
    assert all(found[row] == rewards[row] for row in range(len(rows)) if row not in inside)


@settings(max_examples=200)
@given(st.lists(st.tuples(finite | usual, finite | usual, labels), max_size=30))
def test_remax_equals_exact_arithmetic(rows: list[tuple[float, float, int]]) -> None:
    from fractions import Fraction

    rewards, greedy, group = ([row[place] for row in rows] for place in range(3))
    want = [as_float(Fraction(reward) - Fraction(other)) for reward, other in zip(rewards, greedy, strict=True)]
    assert_close(remax(rewards, group, greedy), want, scale=0.0)


@settings(max_examples=200)
@given(st.lists(st.tuples(finite | usual, st.integers(0, 1)), max_size=14), st.integers(1, 9))
@example([(LARGEST, 0), (-LARGEST, 0), (0.0, 0), (1.0, 0)], 2)
def test_pass_at_k_equals_the_list_of_all_teams(rows: list[tuple[float, int]], k: int) -> None:
    rewards, group = [reward for reward, _ in rows], [label for _, label in rows]
    found, want = pass_at_k_rewards(rewards, group, k=k), slow_pass_at_k(rewards, group, k)
    assert_close(found, want, scale=max(map(abs, rewards), default=0.0))
    for label in set(group):
        pairs = {(rewards[row], found[row]) for row in range(len(rows)) if group[row] == label}
        assert len(pairs) == len({reward for reward, _ in pairs})  # equal rewards stay equal


@settings(max_examples=100)
@given(st.floats(0, LARGEST, allow_nan=False), st.integers(1, 20), st.integers(1, 4))
def test_constant_groups_are_exactly_zero_under_every_estimator_that_compares(reward: float, size: int, num_groups: int) -> None:
    rewards, group = [reward] * size * num_groups, list(range(num_groups)) * size
    columns = {"rewards": rewards, "group": group, "lengths": [3.0] * len(group)}
    for name in ESTIMATORS:
        found = declared(name)
        if found.row is RowKind.EPISODE and set(found.columns) <= set(columns) and not (name == "slime_normalize" and reward > 1):
            assert not found.apply(columns).any(), name


@settings(max_examples=100)
@given(st.lists(st.tuples(st.floats(0, 100), labels), min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_the_order_of_rows_and_the_names_of_labels_do_not_matter(rows: list[tuple[float, int]], random: object) -> None:
    order = list(range(len(rows)))
    random.shuffle(order)  # type: ignore[attr-defined]
    plain = {"rewards": [row[0] for row in rows], "group": [row[1] for row in rows], "lengths": [1.0 + row[1] for row in rows]}
    plain["greedy_rewards"] = [0.5] * len(rows)
    mixed = {name: [column[row] for row in order] for name, column in plain.items()}
    mixed["group"] = [f"label {label}" for label in mixed["group"]]  # type: ignore[misc]
    for name in ESTIMATORS:
        if declared(name).row is RowKind.EPISODE:
            np.testing.assert_allclose(declared(name).apply(mixed), declared(name).apply(plain)[order], rtol=1e-9, atol=1e-9, err_msg=name)
