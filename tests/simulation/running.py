"""Many seeds, one after another or side by side, and what is said about one that failed."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from tests.simulation import outside_plants, plants
from tests.simulation.history import Violation
from tests.simulation.outside_world import OutsideWorld
from tests.simulation.planting import PLANTS, planted
from tests.simulation.world import World

_REGISTERED = (plants, outside_plants)
"""Modules that put their bugs on the list when they are imported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How one seed went."""

    seed: int
    num_events: int
    digest: str
    """Of everything that happened."""
    failure: str | None = None
    """The promise that was broken, the events that led there, and how to see it again."""


def run_seed(seed: int, plant: str | None = None) -> Run:
    """Run one seed to its end in every world, or to the first broken promise. An exception of the product counts as one."""
    runs = []
    for world in (World, OutsideWorld):
        if plant is None or PLANTS[plant].world is world:
            runs.append(_run_world(world(seed), plant))
            if runs[-1].failure is not None:
                break
    return Run(seed=seed, num_events=sum(run.num_events for run in runs), digest=" ".join(run.digest for run in runs), failure=runs[-1].failure)


def _run_world(world: World, plant: str | None) -> Run:
    failure = None
    if plant is not None and not PLANTS[plant].shows(world.scenario):
        return Run(seed=world.seed, num_events=0, digest="")
    with planted(plant):
        try:
            world.run()
        except Violation as broken:
            failure = _story(world, broken, plant)
        except Exception as error:
            failure = _story(world, Violation("crash", f"{type(error).__name__}: {error}"), plant)
            if plant is None:
                raise RuntimeError(failure) from error
    return Run(seed=world.seed, num_events=world.clock.num_events, digest=world.stage.history.digest(), failure=failure)


def run_seeds(seeds: Iterable[int], plant: str | None = None, jobs: int = 1) -> Iterator[Run]:
    """Run seeds and give each as it is done, in order."""
    if jobs == 1:
        yield from map(partial(run_seed, plant=plant), seeds)
        return
    with multiprocessing.Pool(jobs) as pool:
        yield from pool.imap(partial(run_seed, plant=plant), seeds, chunksize=4)


def first_failure(seeds: Iterable[int], plant: str | None = None, jobs: int = 1) -> Run | None:
    """The first seed that breaks a promise; None if all of them are clean."""
    return next((run for run in run_seeds(seeds, plant, jobs) if run.failure is not None), None)


def _story(world: World, broken: Violation, plant: str | None) -> str:
    again = f"python -m tests.simulation --seeds 1 --first-seed {world.seed}{f' --plant {plant}' if plant else ''}"
    lines = [f"seed {world.seed}, event {world.clock.num_events}: {broken}", *world.stage.history.about(broken.subjects), f"again: {again}"]
    return "\n".join(lines)
