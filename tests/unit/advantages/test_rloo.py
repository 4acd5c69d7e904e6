import numpy as np
import pytest

from penstock.advantages import rloo

LARGEST = float(np.finfo(np.float64).max)


def test_each_member_is_compared_with_the_others_only() -> None:
    # Group x: 1, 0, 0.5 against means of the others 0.25, 0.75, 0.5. Group y: 2, 0 against each other.
    assert rloo([1.0, 2.0, 0.0, 0.0, 0.5], ["x", "y", "x", "y", "x"]).tolist() == [0.75, 2.0, -0.75, -2.0, 0.0]


def test_constant_and_single_groups_are_exactly_zero() -> None:
    assert not rloo([0.1] * 7 + [3.0], [0] * 7 + [1]).any()


def test_std_is_divided_by_only_when_asked() -> None:
    # Rewards 1, 0: leave-one-out +-1, sample std sqrt(1/2).
    expected = 1.0 / (0.5**0.5 + 1e-6)
    np.testing.assert_allclose(rloo([1.0, 0.0], [0, 0], rloo_std=True), [expected, -expected], rtol=1e-14)


def test_what_no_float_can_hold_becomes_the_largest() -> None:
    assert rloo([LARGEST, -LARGEST], [0, 0]).tolist() == [LARGEST, -LARGEST]


def test_empty_input_gives_empty_output() -> None:
    assert rloo([], []).shape == (0,)


def test_a_nan_is_refused_with_its_row() -> None:
    with pytest.raises(ValueError, match=r"rewards\[2\] is nan"):
        rloo([1.0, 0.0, np.nan], [0, 0, 0])


def test_the_word_false_is_not_taken_for_true() -> None:
    with pytest.raises(ValueError, match="rloo_std is 'false'; it must be true or false"):
        rloo([1.0, 0.0], [0, 0], rloo_std="false")  # type: ignore[arg-type]
