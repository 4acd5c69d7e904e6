"""Slow, obvious estimators in exact rational arithmetic, which the fast ones must equal."""

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import combinations

import numpy as np

LARGEST = float(np.finfo(np.float64).max)
EPS = 1e-6


def by_label(labels: Sequence[Hashable]) -> dict[Hashable, list[int]]:
    rows: dict[Hashable, list[int]] = defaultdict(list)
    for row, label in enumerate(labels):
        rows[label].append(row)
    return rows


def as_float(value: Fraction) -> float:
    return float(max(min(value, Fraction(LARGEST)), -Fraction(LARGEST)))


def mean(values: Sequence[Fraction]) -> Fraction:
    return sum(values, Fraction(0)) / len(values)


def divided(deviation: Fraction, variance: Fraction, eps: float) -> float:
    """deviation / (sqrt(variance) + eps) with 60 digits."""
    with localcontext() as context:
        context.prec, context.Emax, context.Emin = 60, 99_999, -99_999
        std = (Decimal(variance.numerator) / Decimal(variance.denominator)).sqrt()
        return float(Decimal(deviation.numerator) / Decimal(deviation.denominator) / (std + Decimal(eps)))


def normalised(values: Sequence[Fraction], norm: str, eps: float = EPS, ddof: int = 1) -> list[float]:
    """One group: deviations from its mean, in `mean_std_norm` over its std + eps."""
    centre = mean(values)
    deviations = [value - centre for value in values]
    if norm == "mean_norm":
        return [as_float(deviation) for deviation in deviations]
    if len(values) <= ddof:
        return [0.0] * len(values)
    variance = sum((deviation**2 for deviation in deviations), Fraction(0)) / (len(values) - ddof)
    return [divided(deviation, variance, eps) if deviation else 0.0 for deviation in deviations]


def per_group(group: Sequence[Hashable], function: Callable[[list[int]], Sequence[float]]) -> list[float]:
    out = [0.0] * len(group)
    for rows in by_label(group).values():
        for row, value in zip(rows, function(rows), strict=True):
            out[row] = float(value)
    return out


def slow_grpo(rewards: Sequence[float], group: Sequence[Hashable], norm: str, eps: float = EPS, ddof: int = 1) -> list[float]:
    return per_group(group, lambda rows: normalised([Fraction(rewards[row]) for row in rows], norm, eps, ddof))


def slow_rloo(rewards: Sequence[float], group: Sequence[Hashable]) -> list[float]:
    def one(rows: list[int]) -> list[float]:
        total = sum((Fraction(rewards[row]) for row in rows), Fraction(0))
        return [as_float(Fraction(rewards[row]) - (total - Fraction(rewards[row])) / (len(rows) - 1)) if len(rows) > 1 else 0.0 for row in rows]

    return per_group(group, one)


def slow_reinforce_pp(rewards: Sequence[float], group: Sequence[Hashable], baseline: str, eps: float = EPS, ddof: int = 1) -> list[float]:
    values = [Fraction(reward) for reward in rewards]
    if baseline == "group":
        for rows in by_label(group).values():
            centre = mean([values[row] for row in rows])
            for row in rows:
                values[row] -= centre
    return normalised(values, "mean_std_norm", eps, ddof) if values else []


def slow_opo(rewards: Sequence[float], group: Sequence[Hashable], lengths: Sequence[float]) -> list[float]:
    def one(rows: list[int]) -> list[float]:
        weight = sum((Fraction(lengths[row]) for row in rows), Fraction(0))
        if not weight:
            return [0.0] * len(rows)
        baseline = sum((Fraction(lengths[row]) * Fraction(rewards[row]) for row in rows), Fraction(0)) / weight
        return [as_float(Fraction(rewards[row]) - baseline) for row in rows]

    return per_group(group, one)


def slow_maxrl(rewards: Sequence[float], group: Sequence[Hashable]) -> list[float]:
    def one(rows: list[int]) -> list[float]:
        centre = mean([Fraction(rewards[row]) for row in rows])
        return [float((Fraction(rewards[row]) - centre) / centre) if centre else 0.0 for row in rows]

    return per_group(group, one)


def slow_slime(rewards: Sequence[float], group: Sequence[Hashable]) -> list[float]:
    def one(rows: list[int]) -> list[float]:
        valid = [Fraction(rewards[row]) for row in rows if 0 <= rewards[row] <= 1]
        if not valid or not any(valid):
            return [rewards[row] for row in rows]
        centre = mean(valid)
        variance = sum(((value - centre) ** 2 for value in valid), Fraction(0)) / len(valid)
        flat = math.sqrt(variance) < 1e-8
        return [rewards[row] if not 0 <= rewards[row] <= 1 else 0.0 if flat else divided(Fraction(rewards[row]) - centre, variance, 1e-8) for row in rows]

    return per_group(group, one)


def slow_pass_at_k(rewards: Sequence[float], group: Sequence[Hashable], k: int) -> list[float]:
    """By listing every team."""

    def one(rows: list[int]) -> list[float]:
        teams = list(combinations(rows, min(k, len(rows))))
        return [as_float(mean([Fraction(max(rewards[other] for other in team)) for team in teams if row in team])) for row in rows]

    return per_group(group, one)


def exact_returns(rewards: Sequence[float], trajectory: Sequence[Hashable], gamma: float) -> list[Fraction]:
    out = [Fraction(0)] * len(rewards)
    for rows in by_label(trajectory).values():
        rest = Fraction(0)
        for row in reversed(rows):
            rest = Fraction(rewards[row]) + Fraction(gamma) * rest
            out[row] = rest
    return out


def exact_gae(
    rewards: Sequence[float], trajectory: Sequence[Hashable], values: Sequence[float], gamma: float, lam: float, bootstrap: Sequence[float] | None
) -> list[Fraction]:
    out = [Fraction(0)] * len(rewards)
    for rows in by_label(trajectory).values():
        following = Fraction(0 if bootstrap is None else bootstrap[rows[-1]])
        rest = Fraction(0)
        for row in reversed(rows):
            delta = Fraction(rewards[row]) + Fraction(gamma) * following - Fraction(values[row])
            rest = delta + Fraction(gamma) * Fraction(lam) * rest
            out[row], following = rest, Fraction(values[row])
    return out


def slow_episode_part(
    scores: Sequence[float], trajectory: Sequence[Hashable], group: Sequence[Hashable], norm: str, stats_over: str = "trajectories", singleton: str = "zero"
) -> list[float]:
    """A_E by row. `scores` by row, equal inside a trajectory."""

    def one(rows: list[int]) -> list[float]:
        inside = by_label([trajectory[row] for row in rows])
        if len(inside) == 1:
            return [scores[row] if singleton == "raw" else 0.0 for row in rows]
        if stats_over == "steps":
            return normalised([Fraction(scores[row]) for row in rows], norm)
        firsts = {label: Fraction(scores[rows[places[0]]]) for label, places in inside.items()}
        of_label = dict(zip(firsts, normalised(list(firsts.values()), norm), strict=True))
        return [of_label[trajectory[row]] for row in rows]

    return per_group(group, one)


def slow_step_part(returns: Sequence[Fraction], group: Sequence[Hashable], anchor: Sequence[Hashable], norm: str) -> list[float]:
    # A row without anchor is compared with itself only.
    state = [(label, "at", key) if key is not None else (label, "alone", row) for row, (label, key) in enumerate(zip(group, anchor, strict=True))]
    return per_group(state, lambda rows: normalised([returns[row] for row in rows], norm))


def slow_think(scores: Sequence[float], thinking_group: Sequence[int], complete: Sequence[bool], norm: str) -> list[float]:
    state = [label if complete[row] else ("alone", row) for row, label in enumerate(thinking_group)]
    return per_group(state, lambda rows: normalised([Fraction(scores[row]) for row in rows], norm))


def lcs_length(first: str, second: str) -> int:
    row = [0] * (len(second) + 1)
    for letter in first:
        before = 0
        for place, other in enumerate(second, start=1):
            before, row[place] = row[place], before + 1 if letter == other else max(row[place], row[place - 1])
    return row[-1]


def slow_first_fit(texts: Sequence[str], threshold: float) -> list[int]:
    heads: list[str] = []
    out = []
    for text in texts:
        for cluster, head in enumerate(heads):
            both = len(head) + len(text)
            if both == 0 or Fraction(2 * lcs_length(head, text), both) >= Fraction(str(threshold)):
                out.append(cluster)
                break
        else:
            out.append(len(heads))
            heads.append(text)
    return out


def assert_close_in_each_group(got: np.ndarray, want: Sequence[float], group: Sequence[Hashable]) -> None:
    """Equal to 1e-9 of the largest advantage of the group (and far below that for ordinary rewards)."""
    assert np.isfinite(got).all()
    for rows in by_label(group).values():
        bound = 1e-9 * max(abs(want[row]) for row in rows) + 1e-300
        for row in rows:
            assert abs(got[row] / 2 - want[row] / 2) <= bound, (row, got[row], want[row])  # halves: the difference could overflow


def assert_close(got: np.ndarray, want: Sequence[float], scale: float = 1.0) -> None:
    """Equal to 1e-9 of `scale`, or of the largest value where that is more."""
    assert np.isfinite(got).all()
    assert got.shape == (len(want),)
    bound = 1e-9 * max([scale, *map(abs, want)])
    for row, (ours, theirs) in enumerate(zip(got.tolist(), want, strict=True)):
        assert abs(ours / 2 - theirs / 2) <= bound, (row, ours, theirs)
