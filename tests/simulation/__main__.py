"""`python -m tests.simulation --seeds N --first-seed K [--plant NAME] [--jobs J]`: exit 0 if every seed is clean, 1 with the story of the first that is not."""

from __future__ import annotations

import argparse
import os
import sys
import time

from tests.simulation.planting import PLANTS
from tests.simulation.running import run_seeds


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description="The protocol under faults, seed by seed.")
    parser.add_argument("--seeds", type=int, default=300, help="how many")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--plant", choices=["list", *PLANTS], help="a known bug to plant; `list` names them", metavar="NAME")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    options = parser.parse_args()
    if options.plant == "list":
        for name, plant in PLANTS.items():
            print(f"{name:<32} {plant.meaning}")
        return 0
    started, num_events = time.monotonic(), 0
    for done, run in enumerate(run_seeds(range(options.first_seed, options.first_seed + options.seeds), options.plant, options.jobs), start=1):
        num_events += run.num_events
        if run.failure is not None:
            print(run.failure)
            print(f"{options.plant or 'a bug'} was seen after {done} seeds")
            return 1
        if done % 100 == 0:
            print(f"{done} seeds, {num_events} events, {time.monotonic() - started:.0f} s: clean", flush=True)
    print(f"{options.seeds} seeds, {num_events} events, {time.monotonic() - started:.0f} s: every promise held")
    return 0


if __name__ == "__main__":
    sys.exit(main())
