"""The simulation sees: each known bug, planted in the product, breaks a promise within 300 seeds."""

from __future__ import annotations

import pytest

from tests.simulation.planting import PLANTS
from tests.simulation.running import first_failure


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_seen(name: str) -> None:
    assert first_failure(range(300), name) is not None, f"{name} is not seen in 300 seeds: {PLANTS[name].meaning}"
