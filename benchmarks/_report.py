"""How every benchmark reports: one JSON object per result, or one line for people."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass


@dataclass(frozen=True, kw_only=True)
class Result:
    """One measured figure."""

    name: str
    value: float
    unit: str
    peer: str | None = None
    """What it was measured against, in the same run."""
    peer_value: float | None = None
    ratio: float | None = None
    """Above 1 is better than the peer."""
    goal: float
    """Least `ratio` where there is a peer, else the most, or the least, that `value` may be."""
    met: bool


def against(
    name: str, value: float, unit: str, *, peer: str, peer_value: float, goal: float, more_is_better: bool = False, ratio: float | None = None
) -> Result:
    """A figure beside a peer's. `ratio`, if it was taken in another way than from the two figures: round by round, say."""
    if ratio is None:
        ratio = value / peer_value if more_is_better else peer_value / value
    return Result(name=name, value=value, unit=unit, peer=peer, peer_value=peer_value, ratio=ratio, goal=goal, met=ratio >= goal)


def bounded(name: str, value: float, unit: str, *, goal: float) -> Result:
    """A figure that must not be larger than its goal."""
    return Result(name=name, value=value, unit=unit, goal=goal, met=value <= goal)


def at_least(name: str, value: float, unit: str, *, goal: float) -> Result:
    """A figure that must not be smaller than its goal."""
    return Result(name=name, value=value, unit=unit, goal=goal, met=value >= goal)


def report(result: Result, *, as_json: bool) -> None:
    """Print a result."""
    if as_json:
        print(json.dumps(asdict(result)), flush=True)
        return
    beside = f"   {result.peer}: {result.peer_value:,.4g} {result.unit}, ratio {result.ratio:.2f}" if result.peer else ""
    side = "<=" if result.met == (result.value <= result.goal) else ">="
    bound = f"ratio >= {result.goal:.2f}" if result.peer else f"{side} {result.goal:g} {result.unit}"
    print(f"{'met ' if result.met else 'MISS'}  {result.name}: {result.value:,.4g} {result.unit}{beside}   (goal {bound})", flush=True)


def arguments(description: str | None) -> argparse.Namespace:
    """`--json` and `--quick`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="one JSON object per result")
    parser.add_argument("--quick", action="store_true", help="fit in two minutes")
    return parser.parse_args()


def cpu_seconds(work: Callable[[], object]) -> float:
    """CPU time of a call: other work on the machine does not count."""
    start = time.process_time()
    work()
    return time.process_time() - start


def process_cpu_seconds(pid: int) -> float:
    """User and system time of another process so far, to the nanosecond: the clock that `clock_getcpuclockid` names."""
    return time.clock_gettime(~pid << 3 | 2)


def median_cpu_seconds(work: Callable[[], object], repeats: int) -> float:
    """Median CPU time of several calls, after one to warm up."""
    work()
    return statistics.median(cpu_seconds(work) for _ in range(repeats))
