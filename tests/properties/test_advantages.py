"""GRPO and RLOO against slow ones in exact rational arithmetic."""

import math

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.properties.exact_advantages import LARGEST, assert_close_in_each_group, slow_grpo, slow_rloo

from penstock.advantages import grpo, rloo

finite = st.floats(allow_nan=False, allow_infinity=False)
usual = st.sampled_from([0.0, 1.0, 0.5, -1.0, 0.1, 1 / 3]) | st.floats(-100, 100)
rewards_and_groups = st.lists(st.tuples(finite | usual, st.integers(0, 4)), max_size=30)


@settings(max_examples=300, deadline=None)
@given(rewards_and_groups, st.sampled_from(["mean_std_norm", "mean_norm"]), st.sampled_from([1e-6, 0.0, 1e-8, 1.0]), st.integers(0, 2))
@example([(LARGEST, 0), (-LARGEST, 0), (5e-324, 1), (0.0, 1)], "mean_std_norm", 0.0, 1)
@example([(1e16, 0), (1e16 + 2, 0), (1.0, 0)], "mean_norm", 1e-6, 1)
def test_grpo_equals_exact_arithmetic(rows: list[tuple[float, int]], norm: str, eps: float, ddof: int) -> None:
    rewards, group = [reward for reward, _ in rows], [label for _, label in rows]
    assert_close_in_each_group(grpo(rewards, group, norm=norm, eps=eps, ddof=ddof), slow_grpo(rewards, group, norm, eps, ddof), group)


@settings(max_examples=200, deadline=None)
@given(rewards_and_groups)
@example([(LARGEST, 0), (-LARGEST, 0), (-LARGEST, 0), (1.0, 3)])
def test_rloo_equals_exact_arithmetic(rows: list[tuple[float, int]]) -> None:
    rewards, group = [reward for reward, _ in rows], [label for _, label in rows]
    assert_close_in_each_group(rloo(rewards, group), slow_rloo(rewards, group), group)


@settings(max_examples=100, deadline=None)
@given(finite, st.integers(1, 20), st.integers(1, 4))
def test_constant_groups_are_exactly_zero(reward: float, size: int, num_groups: int) -> None:
    rewards, group = [reward] * size * num_groups, list(range(num_groups)) * size
    assert not grpo(rewards, group).any()
    assert not grpo(rewards, group, norm="mean_norm").any()
    assert not rloo(rewards, group).any()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(usual, st.integers(0, 4)), min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_the_order_of_rows_and_the_names_of_labels_do_not_matter(rows: list[tuple[float, int]], random: object) -> None:
    order = list(range(len(rows)))
    random.shuffle(order)  # type: ignore[attr-defined]
    rewards, group = [reward for reward, _ in rows], [label for _, label in rows]
    plain = grpo(rewards, group)
    shuffled = grpo([rewards[row] for row in order], [f"label {group[row]}" for row in order])
    np.testing.assert_allclose(shuffled, plain[order], atol=1e-12)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(usual, st.integers(0, 4)), max_size=30), st.sampled_from([0.25, 2.0, 1024.0]))
def test_rloo_scales_and_grpo_forgets_scale(rows: list[tuple[float, int]], scale: float) -> None:
    rewards, group = np.array([reward for reward, _ in rows]), [label for _, label in rows]
    np.testing.assert_allclose(rloo(rewards * scale, group), rloo(rewards, group) * scale, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(grpo(rewards * scale, group, eps=0.0), grpo(rewards, group, eps=0.0), rtol=1e-12, atol=1e-12)


def test_a_large_batch_with_sparse_labels_equals_the_dense_one() -> None:
    rng = np.random.default_rng(5)
    dense_N = rng.integers(0, 300, 5_000)
    sparse_N = rng.integers(-(2**62), 2**62, 300)[dense_N]
    rewards_N = rng.normal(size=5_000)
    np.testing.assert_allclose(grpo(rewards_N, sparse_N), grpo(rewards_N, dense_N), rtol=1e-12)
    want = slow_grpo(rewards_N.tolist(), dense_N.tolist(), "mean_std_norm", 1e-6, 1)
    assert math.isclose(float(np.abs(grpo(rewards_N, dense_N) - want).max()), 0.0, abs_tol=1e-12)
