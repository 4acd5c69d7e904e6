"""Every column and option of every estimator with what it must not be: a ValueError that names the argument, and the row and value where one is wrong."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from penstock.advantages import ESTIMATORS, declared, discounted_returns, pass_at_k_rewards, thinking_advantages

GOOD: Mapping[str, list[Any]] = {
    "rewards": [1.0] * 4 + [0.0] * 4,
    "group": [0] * 8,
    "lengths": [1.0] * 8,
    "greedy_rewards": [0.5] * 8,
    "trajectory": [0] * 4 + [1] * 4,
    "step_rewards": [0.0, 0.0, 0.0, 1.0] + [0.0] * 4,
    "anchor": ["a", "b", "a", None] * 2,
    "scores": [1.0] * 4 + [0.0] * 4,
    "values": [0.5] * 8,
    "confidence": [0.1, 0.2, 0.3, 0.4] * 2,
    "cost": [1.0] * 8,
    "thinking_group": [3] * 4 + [4] * 4,
    "chosen": [True, False, False, False] * 2,
    "level": [1, 2, 3, 4] * 2,
    "base": [1.0] * 4 + [2.0] * 4,
    "bootstrap": [0.0] * 8,
}
LABELS = {"group", "trajectory", "thinking_group", "level", "anchor"}
"""Columns of any hashable, or any observation, instead of numbers."""
GAPS = {"confidence"}
"""Columns in which NaN is a value that is not known."""
BAD_NUMBERS = [math.nan, math.inf, -math.inf, None, "x", [1], {1}, 1j, 10**400, b"z", object()]
NO_COLUMN = [5, math.nan, "abcdefgh", b"abcdefgh", {}, {1, 2}, np.array(1.0), object()]
BAD_OPTIONS = [math.nan, math.inf, -math.inf, "x", [1], np.array([1, 2]), 10**400, 1j, object()]


@dataclass(frozen=True, kw_only=True)
class Called:
    function: Callable[..., Any]
    columns: tuple[str, ...]
    optional: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, **change: Any) -> Any:
        columns = {name: GOOD[name] for name in (*self.columns, *self.optional)}
        return self.function(**(columns | dict(self.options) | change))


def built_in(name: str) -> Called:
    found = declared(name)
    return Called(function=found.function, columns=found.columns, optional=found.optional_columns, options=found.options)


CALLS = {
    **{name: built_in(name) for name in ESTIMATORS},
    "discounted_returns": Called(function=discounted_returns, columns=("rewards", "trajectory"), options={"gamma": 0.5}),
    "pass_at_k_rewards": Called(function=pass_at_k_rewards, columns=("rewards", "group"), options={"k": 2}),
    "thinking_advantages": Called(
        function=thinking_advantages,
        columns=("confidence", "cost", "thinking_group"),
        options={"signal": "confidence", "thinking_cost_alpha": 0.0, "cost_max": 250, "mode": "mean_norm"},
    ),
}
COLUMNS = [(name, column) for name, call in CALLS.items() for column in (*call.columns, *call.optional)]
OPTIONS = [(name, option) for name, call in CALLS.items() for option in call.options]


@pytest.mark.parametrize("name", CALLS)
def test_the_good_columns_are_good(name: str) -> None:
    found = CALLS[name]()
    assert np.isfinite(getattr(found, "total", found)).all()


@pytest.mark.parametrize(("name", "column"), [(name, column) for name, column in COLUMNS if column not in LABELS])
def test_a_bad_number_is_named_with_its_row_and_value(name: str, column: str) -> None:
    for value in BAD_NUMBERS:
        if column in GAPS and value is math.nan:
            continue
        shown = "a number beyond the range of float64" if value == 10**400 else re.escape(f"{value!r}")
        with pytest.raises(ValueError, match=rf"^{column}\[2\] is {shown}; it must be a finite number"):
            CALLS[name](**{column: [*GOOD[column][:2], value, *GOOD[column][3:]]})


@pytest.mark.parametrize(("name", "column"), [(name, column) for name, column in COLUMNS if column in LABELS])
def test_a_bad_label_is_named_with_its_row_and_value(name: str, column: str) -> None:
    with pytest.raises(ValueError, match=rf"^{column}\[2\] is \{{1\}}, which "):
        CALLS[name](**{column: [*GOOD[column][:2], {1}, *GOOD[column][3:]]})
    if column != "anchor":  # an observation of NaN equals another
        with pytest.raises(ValueError, match=rf"^{column}\[2\] is nan, which "):
            CALLS[name](**{column: [*GOOD[column][:2], math.nan, *GOOD[column][3:]]})


@pytest.mark.parametrize(("name", "column"), COLUMNS)
def test_what_is_no_column_is_named_with_its_value(name: str, column: str) -> None:
    for value in NO_COLUMN if column in CALLS[name].optional else [None, *NO_COLUMN]:
        shown = r"(.*; it must be a column with one entry per row|must have one axis, got shape \(\))"
        with pytest.raises(ValueError, match=rf"^{column} (is )?{shown}"):
            CALLS[name](**{column: value})


@pytest.mark.parametrize(("name", "column"), COLUMNS)
def test_lengths_that_differ_are_named_with_both(name: str, column: str) -> None:
    for length in (0, 7, 9):
        # Of the first column the others are found to be too long or too short.
        who = rf"\w+ has 8 \w+ for {length} rows" if column == CALLS[name].columns[0] else f"{column} has {length} .* for 8 rows"
        with pytest.raises(ValueError, match=f"^{who}; there must be one"):
            CALLS[name](**{column: (GOOD[column] * 2)[:length]})


@pytest.mark.parametrize(("name", "option"), OPTIONS)
def test_a_bad_option_is_named_with_its_value(name: str, option: str) -> None:
    for value in BAD_OPTIONS:
        with pytest.raises(ValueError, match=rf"^{option} is {re.escape(repr(value)[:40])}"):
            CALLS[name](**{option: value})


@pytest.mark.parametrize("name", CALLS)
def test_no_rows_at_all_give_none(name: str) -> None:
    call = CALLS[name]
    found = call(**{column: [] for column in (*call.columns, *call.optional)})
    assert getattr(found, "total", found).shape == (0,)
