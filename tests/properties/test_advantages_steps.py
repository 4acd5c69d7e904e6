"""Estimators on steps against slow ones in exact rational arithmetic."""

import math
import sys
from fractions import Fraction
from unittest import mock

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.properties.exact_advantages import (
    LARGEST,
    as_float,
    assert_close,
    by_label,
    exact_gae,
    exact_returns,
    slow_episode_part,
    slow_first_fit,
    slow_step_part,
    slow_think,
)

from penstock.advantages import copo, discounted_returns, gae, gigpo, rlvcr
from penstock.advantages.anchors import first_fit

GIGPO_FILE = sys.modules["penstock.advantages.gigpo"]  # the package's own `gigpo` is the function
finite = st.floats(allow_nan=False, allow_infinity=False)
usual = st.sampled_from([0.0, 0.0, 1.0, 0.5, -1.0, 0.1]) | st.floats(-8, 8)
gammas = st.sampled_from([0.0, 0.5, 0.95, 1.0]) | st.floats(0, 1)
norms = st.sampled_from(["mean_norm", "mean_std_norm"])


def largest_sum(*columns: list[float]) -> float:
    """What the sums over time may be in error by is a share of this."""
    return float(min(Fraction(LARGEST), sum((abs(Fraction(value)) for column in columns for value in column), Fraction(0))))


@settings(max_examples=300)
@given(st.lists(st.tuples(finite | usual, st.integers(0, 3)), max_size=30), gammas)
@example([(LARGEST, 0), (LARGEST, 0), (-LARGEST, 0), (1.0, 1)], 1.0)
def test_returns_equal_exact_arithmetic(rows: list[tuple[float, int]], gamma: float) -> None:
    rewards, trajectory = [reward for reward, _ in rows], [label for _, label in rows]
    want = [as_float(value) for value in exact_returns(rewards, trajectory, gamma)]
    assert_close(discounted_returns(rewards, trajectory, gamma=gamma), want, scale=largest_sum(rewards))


@settings(max_examples=200)
@given(st.lists(st.tuples(finite | usual, finite | usual, usual, st.integers(0, 3)), max_size=20), gammas, gammas, st.booleans())
@example([(LARGEST, -LARGEST, 0.0, 0), (LARGEST, LARGEST, 0.0, 0)], 1.0, 1.0, False)
def test_gae_equals_exact_arithmetic(rows: list[tuple[float, float, float, int]], gamma: float, lam: float, cut_off: bool) -> None:
    rewards, values, ends, trajectory = ([row[place] for row in rows] for place in range(4))
    found = gae(rewards, trajectory, values, gamma=gamma, lam=lam, bootstrap=ends if cut_off else None)
    exact = exact_gae(rewards, trajectory, values, gamma, lam, ends if cut_off else None)
    scale = largest_sum(rewards, values, values, ends)
    assert_close(found.total, [as_float(value) for value in exact], scale=scale)
    assert_close(found.returns, [as_float(value + Fraction(own)) for value, own in zip(exact, values, strict=True)], scale=scale)


# A trajectory is in the group of its number modulo 2.
step_rows = st.lists(st.tuples(usual, st.integers(0, 5), st.sampled_from(["hall", "shed", "", None])), max_size=30)


@settings(max_examples=300)
@given(
    step_rows,
    gammas,
    norms,
    st.sampled_from(["trajectories", "steps"]),
    st.sampled_from(["zero", "raw"]),
    st.sampled_from(["additive", "omega"]),
    st.sampled_from([0.0, 0.25, 1.0]),
    st.booleans(),
    st.sampled_from([1, 5, 1 << 16]),
)
def test_gigpo_equals_exact_arithmetic(
    rows: list[tuple[float, int, str | None]],
    gamma: float,
    norm: str,
    stats_over: str,
    singleton: str,
    combine: str,
    weight: float,
    scored: bool,
    rows_at_once: int,
) -> None:
    rewards, trajectory, anchor = ([row[place] for row in rows] for place in range(3))
    group = [label % 2 for label in trajectory]
    sums = {label: float(sum((Fraction(rewards[row]) for row in own), Fraction(0))) for label, own in by_label(trajectory).items()}
    scores = [float(label) if scored else sums[label] for label in trajectory]
    # Large columns are worked on in stretches; here small ones are.
    with mock.patch.object(GIGPO_FILE, "_ROWS_AT_ONCE", rows_at_once):
        found = gigpo(
            rewards,
            trajectory,
            group,
            anchor,
            scores=scores if scored else None,
            gamma=gamma,
            norm=norm,
            w=weight,
            omega=weight,
            combine=combine,
            stats_over=stats_over,
            singleton=singleton,
        )
    returns = exact_returns(rewards, trajectory, gamma)
    episode = slow_episode_part(scores, trajectory, group, norm, stats_over, singleton)
    step = slow_step_part(returns, group, anchor, norm)
    first, second = (1.0, weight) if combine == "additive" else (weight, 1 - weight)
    # Rounding of sums is seen through the division by std + 1e-6 where values differ by no more than that.
    scale = 1.0 if norm == "mean_norm" else 10.0
    assert_close(found.returns, [float(value) for value in returns])
    assert_close(found.episode, episode, scale=scale)
    assert_close(found.step, step, scale=scale)
    assert_close(found.total, [first * ours + second * theirs for ours, theirs in zip(episode, step, strict=True)], scale=scale)


@settings(max_examples=100)
@given(st.lists(st.tuples(finite, st.integers(0, 5), st.sampled_from(["hall", "shed", None])), max_size=20), norms)
def test_gigpo_is_finite_for_all_finite_rewards(rows: list[tuple[float, int, str | None]], norm: str) -> None:
    rewards, trajectory, anchor = ([row[place] for row in rows] for place in range(3))
    found = gigpo(rewards, trajectory, [label % 2 for label in trajectory], anchor, norm=norm)
    assert all(np.isfinite(part).all() for part in (found.total, found.episode, found.step, found.returns))


@settings(max_examples=100)
@given(finite, st.integers(1, 5), st.integers(1, 6), norms, gammas)
def test_equal_trajectories_are_exactly_zero(reward: float, num_trajectories: int, num_steps: int, norm: str, gamma: float) -> None:
    trajectory = list(range(num_trajectories)) * num_steps
    anchor = [step for step in range(num_steps) for _ in range(num_trajectories)]
    found = gigpo([reward] * len(trajectory), trajectory, [0] * len(trajectory), anchor, norm=norm, gamma=gamma)
    assert not found.total.any()


@settings(max_examples=100)
@given(step_rows.filter(bool), st.randoms(use_true_random=False))
def test_trajectories_may_interleave_and_labels_may_be_anything(rows: list[tuple[float, int, str | None]], random: object) -> None:
    # Any order that keeps the order inside each trajectory.
    slots = [row[1] for row in rows]
    random.shuffle(slots)  # type: ignore[attr-defined]
    own = {label: iter(places) for label, places in by_label([row[1] for row in rows]).items()}
    order = [next(own[slot]) for slot in slots]
    plain = gigpo([row[0] for row in rows], [row[1] for row in rows], [row[1] % 2 for row in rows], [row[2] for row in rows])
    mixed = [rows[place] for place in order]
    named = gigpo([row[0] for row in mixed], [f"t{row[1]}" for row in mixed], [(row[1] % 2, "g") for row in mixed], [row[2] for row in mixed])
    np.testing.assert_allclose(named.total, plain.total[order], atol=1e-12)


# A step: (trajectory, confidences or None, failed, chosen). Usually all four levels are there; a step that failed lacks the confidence of one, and one that
# was not expanded does not know its level.
some_confidences = st.sampled_from([0.0, 0.5, 1.0]) | st.floats(0, 1)
thinking_steps = st.lists(
    st.tuples(
        st.integers(0, 4),
        st.none() | st.lists(some_confidences, min_size=4, max_size=4) | st.lists(some_confidences, min_size=1, max_size=5),
        st.sampled_from([False, False, False, True]),
        st.integers(0, 3),
    ),
    max_size=12,
)
Step = tuple[int, list[float] | None, bool, int]


def columns_of(steps: list[Step]) -> dict[str, list[float]]:
    names = ("rewards", "group", "confidence", "cost", "thinking_group", "trajectory", "chosen", "level", "base")
    columns: dict[str, list[float]] = {name: [] for name in names}
    for number, (trajectory, confidences, failed, chosen) in enumerate(steps):
        known = [math.nan] if confidences is None else [math.nan if failed and level == len(confidences) // 2 else own for level, own in enumerate(confidences)]
        for level, confidence in enumerate(known):
            columns["rewards"].append([0.0, 1.0, 0.5, 1.0, -2.0][trajectory])
            columns["group"].append(trajectory % 2)
            columns["confidence"].append(confidence)
            columns["cost"].append(100.0 * level)
            columns["thinking_group"].append(-1 if confidences is None else number)
            columns["trajectory"].append(trajectory)
            columns["chosen"].append(level == chosen % len(known))
            columns["level"].append(level + 1 if confidences is not None else 0 if failed else chosen + 1)
            columns["base"].append(number / 4 - 1)
    return columns


def labels_of_steps(columns: dict[str, list[float]]) -> list[object]:
    """One for each step."""
    return [label if label >= 0 else ("alone", row) for row, label in enumerate(columns["thinking_group"])]


def complete_rows(columns: dict[str, list[float]]) -> list[bool]:
    own = by_label(columns["thinking_group"])
    complete = {label for label, rows in own.items() if len(rows) == 4 and label != -1 and not any(math.isnan(columns["confidence"][row]) for row in rows)}
    return [label in complete for label in columns["thinking_group"]]


FEW = [(0, [0.5, 0.25, 1.0], False, 1), (1, [0.9, 0.1, 0.2, 0.3], False, 2), (2, None, True, 0), (3, None, False, 2)]


@settings(max_examples=200)
@given(
    thinking_steps,
    norms,
    st.sampled_from(["steps", "trajectories", "ready"]),
    st.sampled_from([0.0, 0.5]),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.sampled_from([1.0, 0.25]),
)
@example(FEW, "mean_norm", "ready", 0.5, 1.0, 1.0)
def test_rlvcr_equals_exact_arithmetic(steps: list[Step], mode: str, credit: str, alpha: float, diversity: float, weight: float) -> None:
    columns = columns_of(steps)
    trajectory, ready = columns.pop("trajectory"), columns.pop("base")
    found = rlvcr(
        **columns,  # type: ignore[arg-type]
        trajectory=trajectory if credit == "trajectories" else None,
        base=ready if credit == "ready" else None,
        mode=mode,
        thinking_cost_alpha=alpha,
        thinking_diversity_w=diversity,
        step_advantage_w=weight,
    )
    thinking = labels_of_steps(columns)
    quality = [0.0 if math.isnan(value) else value for value in columns["confidence"]]
    scores = [value + alpha * (0.5 - min(cost / 250, 1)) for value, cost in zip(quality, columns["cost"], strict=True)]
    base = ready if credit == "ready" else slow_episode_part(columns["rewards"], trajectory if credit == "trajectories" else thinking, columns["group"], mode)
    think = slow_think(scores, thinking, complete_rows(columns), mode)  # type: ignore[arg-type]
    level_of = {label: columns["level"][row] for row, label in enumerate(thinking) if columns["chosen"][row]}
    picked = [level for level in level_of.values() if level != 0]
    shares = [picked.count(level_of[label]) / max(len(picked), 1) for label in thinking]
    want = [own + weight * part * ((1 - share) * diversity + 1 - diversity) for own, part, share in zip(base, think, shares, strict=True)]
    assert_close(found, want)


@settings(max_examples=200)
@given(thinking_steps, st.sampled_from(["steps", "trajectories", "ready"]))
@example(FEW, "steps")
def test_copo_equals_the_formula(steps: list[Step], credit: str) -> None:
    columns = columns_of(steps)
    trajectory = columns["trajectory"] if credit == "trajectories" else None
    ready = columns["base"] if credit == "ready" else None
    found = copo(columns["rewards"], columns["group"], columns["confidence"], columns["thinking_group"], trajectory=trajectory, base=ready)
    want = slow_episode_part(columns["rewards"], trajectory or labels_of_steps(columns), columns["group"], "mean_std_norm") if ready is None else list(ready)
    complete = complete_rows(columns)
    for rows in by_label(columns["thinking_group"]).values():
        if not complete[rows[0]]:
            continue
        own = [columns["confidence"][row] for row in rows]
        low, high = min(own), max(own)
        places = [(value - low) / (high - low) if high - low > 1e-6 else 0.5 for value in own]
        risen = [math.exp(2 * place) for place in places]
        for row, value in zip(rows, risen, strict=True):
            want[row] *= value / (sum(risen) / 4)
    assert_close(found, want)


@settings(max_examples=300)
@given(st.lists(st.text(alphabet="ab ", max_size=12), unique=True, max_size=14), st.sampled_from([0.5, 0.75, 0.8, 0.9, 0.95, 1.0]))
def test_clusters_are_those_of_first_fit_by_the_longest_common_subsequence(texts: list[str], threshold: float) -> None:
    assert first_fit(texts, threshold).tolist() == slow_first_fit(texts, threshold)
