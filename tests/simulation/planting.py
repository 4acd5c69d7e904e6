"""Where known bugs are kept, and how one is planted while a run lasts."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from tests.simulation.outside_world import OutsideWorld
from tests.simulation.scenario import Scenario
from tests.simulation.world import World

Patches = list[tuple[object, str, Any]]
"""What to replace: owner, name, by what."""


@dataclass(frozen=True, slots=True)
class Plant:
    """A known bug."""

    make: Callable[[], Patches]
    shows: Callable[[Scenario], bool]
    """Whether it can make a difference in such a world at all; other seeds need not be run."""
    world: type[World] = World
    """Whose law it breaks."""

    @property
    def meaning(self) -> str:
        return inspect.getdoc(self.make) or ""


PLANTS: dict[str, Plant] = {}


def plant(make: Callable[[], Patches]) -> Callable[[], Patches]:
    """Register a bug that may show anywhere, under the name of the function that makes it."""
    return plant_where(lambda world: True)(make)


def plant_where(shows: Callable[[Scenario], bool]) -> Callable[[Callable[[], Patches]], Callable[[], Patches]]:
    """Register a bug that shows in some worlds only."""

    def register(make: Callable[[], Patches]) -> Callable[[], Patches]:
        PLANTS[make.__name__] = Plant(make, shows)
        return make

    return register


def has_faults(world: Scenario) -> bool:
    """Whether anybody dies in this world."""
    return world.seconds_between_faults < float("inf")


def plant_outside(make: Callable[[], Patches]) -> Callable[[], Patches]:
    """Register a bug that shows in the world without a learner."""
    PLANTS[make.__name__] = Plant(make, lambda world: True, OutsideWorld)
    return make


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """With this bug in the product; with none if there is no name."""
    with ExitStack() as stack:
        for owner, attribute, replacement in PLANTS[name].make() if name else []:
            stack.enter_context(patch.object(owner, attribute, replacement))
        yield


def laws_of(part: str) -> Any:
    """A module of the ledger; by this way, because some functions have the name of their module."""
    return sys.modules[f"penstock.ledger.{part}"]


def resolved() -> Future[None]:
    future: Future[None] = Future()
    future.set_result(None)
    return future
