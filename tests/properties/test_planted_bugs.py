"""Laws with a known bug: the machines that ask anything in any order must find it."""

from __future__ import annotations

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test
from tests.properties.test_arrivals import AnyArrival
from tests.properties.test_ledger import AnyOrder
from tests.simulation import outside_plants, plants
from tests.simulation.planting import planted

BUGS = [(AnyOrder, bug) for bug in (plants.two_cuts_of_one_group, plants.duplicate_fills_group)]
BUGS += [(AnyArrival, bug) for bug in (outside_plants.read_gives_a_group_twice, outside_plants.item_twice_in_its_group, outside_plants.lease_of_anybody)]
# The same requests each time, many of them, and no search for the shortest that fails.
SEARCH = settings(max_examples=1000, stateful_step_count=40, deadline=None, derandomize=True, database=None, phases=[Phase.generate])


@pytest.mark.parametrize(("machine", "bug"), [(machine, bug.__name__) for machine, bug in BUGS], ids=lambda value: value if isinstance(value, str) else "")
def test_a_planted_bug_is_found(machine: type[RuleBasedStateMachine], bug: str) -> None:
    with planted(bug), pytest.raises(AssertionError):
        run_state_machine_as_test(machine, settings=SEARCH)
