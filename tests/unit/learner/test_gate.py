from __future__ import annotations

import numpy as np
import pytest

from penstock.learner.config import GateConfig
from penstock.learner.gate import Gate, Mismatch, mismatch
from penstock.types import Float64Array, Int32Array


def differing_by(*differences: float) -> tuple[np.ndarray, np.ndarray]:
    sampler = -np.ones(len(differences))
    return sampler, sampler + np.array(differences)


def breach(sampler: Float64Array, learner: Float64Array, versions: Int32Array, config: GateConfig) -> str | None:
    """Of the first update of a run."""
    return Gate(config).breach(sampler, learner, versions)


def test_p999_is_the_smallest_bound_that_999_of_1000_keep() -> None:
    assert mismatch(*differing_by(*[1e-7] * 999, 0.5), mixed_kv=0).p999 == pytest.approx(1e-7)
    assert mismatch(*differing_by(*[1e-7] * 998, 0.5, 0.5), mixed_kv=0).p999 == 0.5
    assert mismatch(*differing_by(0.25, -0.5, 0.0), mixed_kv=0).p999 == 0.5


def test_no_token_is_no_mismatch() -> None:
    assert mismatch(*differing_by(), mixed_kv=4) == Mismatch(mixed_kv=4)


def test_sums_count_exactly_and_bound_p999_from_above_by_at_most_a_bin() -> None:
    random = np.random.default_rng(0)
    parts = [np.exp(random.normal(-14, 2, size)) for size in (3000, 1, 500)]
    whole = mismatch(*differing_by(*np.concatenate(parts)), mixed_kv=6)
    total = sum((mismatch(*differing_by(*part), mixed_kv=2) for part in parts), Mismatch())
    assert (total.tokens, total.mixed_kv, total.max, total.histogram) == (whole.tokens, whole.mixed_kv, whole.max, whole.histogram)
    assert whole.p999 <= total.p999 <= whole.p999 * 10 ** (1 / 12)


def test_rounding_passes_and_a_wrong_weight_does_not() -> None:
    config = GateConfig(p999_limit=1e-5, max_limit=1e-4)
    versions = np.array([3] * 2000, np.int32)
    assert breach(*differing_by(*[1e-6] * 1999, 9e-5), versions, config) is None
    assert breach(*differing_by(*[1e-6] * 1999, 2e-4), versions, config) is not None
    assert breach(*differing_by(*[1e-6] * 1980, *[2e-5] * 20), versions, config) is not None


def test_a_few_tokens_just_above_the_bound_do_not_stop_a_run_and_many_do() -> None:
    config = GateConfig(p999_limit=1e-5, max_limit=1e-4)
    versions = np.array([3] * 840, np.int32)
    assert breach(*differing_by(*[1e-6] * 839, 1.1e-5), versions, config) is None
    assert breach(*differing_by(*[1e-6] * 835, *[1.1e-5] * 5), versions, config) is None
    assert breach(*differing_by(*[1e-6] * 834, *[1.1e-5] * 6), versions, config) is not None


def test_a_hard_place_that_members_share_passes_after_updates_that_agreed() -> None:
    gate, versions = Gate(GateConfig(p999_limit=1e-5, max_limit=1e-4)), np.array([3] * 400, np.int32)
    shared = differing_by(*[1e-6] * 385, *[1.9e-5] * 15)
    assert gate.breach(*shared, versions) is not None
    for _ in range(25):
        assert gate.breach(*differing_by(*[1e-6] * 400), versions) is None
    assert gate.breach(*shared, versions) is None
    assert gate.breach(*shared, versions) is not None, "what comes again is no chance"


def test_a_small_batch_of_wrong_weights_is_seen_whatever_went_before() -> None:
    gate = Gate(GateConfig(p999_limit=1e-5, max_limit=1e-4))
    for _ in range(25):
        assert gate.breach(*differing_by(*[1e-6] * 400), np.zeros(400, np.int32)) is None
    assert gate.breach(*differing_by(*[1e-6] * 6, *[5e-5] * 10), np.zeros(16, np.int32)) is not None


def test_a_large_update_is_not_excused_by_those_before_it() -> None:
    gate = Gate(GateConfig(p999_limit=1e-5, max_limit=1e-4))
    for _ in range(3):
        assert gate.breach(*differing_by(*[1e-6] * 10_000), np.zeros(10_000, np.int32)) is None
    assert gate.breach(*differing_by(*[1e-6] * 9_970, *[2e-5] * 30), np.zeros(10_000, np.int32)) is not None


def test_the_cause_names_the_version_that_is_off() -> None:
    cause = breach(*differing_by(0, 0, 0, 0.5, 0.25), np.array([6, 6, 6, 7, 7], np.int32), GateConfig())
    assert cause is not None
    assert "version 7: 2 of its 2 tokens" in cause
    assert "the sampler gave -1.000000, the learner -0.500000" in cause


def test_nan_is_a_breach() -> None:
    assert breach(*differing_by(0.0, np.nan), np.zeros(2, np.int32), GateConfig()) is not None
