"""What one seed decides before anything happens: the laws of the run, its sizes, and how much goes wrong."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Literal

from penstock.types import CutRequest, Laws
from tests.simulation.clockwork import Weather

RUN = "run"
INITIAL = "weights-0"
"""Digest of the weights that the run starts from."""
LONGEST_REPLY_TOKENS = 36
LONGEST_PROMPT_TOKENS = 24
LEASE_SECONDS = 4.0
"""Of sessions and terms: short, so that a run of some thousand events outlives a few."""
RENEWAL_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One seed's world."""

    laws: Laws
    request: CutRequest
    """How the learner cuts until the run is drained."""
    environments: tuple[str, ...]
    group_size: int
    num_workers: int
    num_servers: int
    num_learners: int
    episodes_per_worker: int
    checkpoint_interval: int
    keep_newest: int
    """Checkpoints that are not retired, beside the first."""
    resume: str
    """`replay`, `recut`, or `either`: each life chooses."""
    unsteady: bool
    """The hardware is not deterministic: a replay gives other weights, and the run forks."""
    skip_rate: float
    """Share of updates that the learner skips."""
    failure_rate: float
    """Share of episodes that fail."""
    weather: Weather
    commit_seconds: float
    """How long the disk takes at most to make a write durable."""
    seconds_between_faults: float
    """Mean time between kills, freezes, disk faults and clock jumps; infinite for none."""
    calm_after_events: int
    """When faults stop, no more groups are opened, and the run is drained."""


DRAIN = CutRequest(budget_tokens=2_000, short="spill", spill_after_seconds=0.0)
"""How what is left is cut: all at once, whosever it is."""


def scenario(rng: Random) -> Scenario:
    """Draw a world."""
    group_size = rng.choice((2, 2, 3, 4, 5))
    environments = tuple(f"env{number}" for number in range(rng.choice((1, 1, 2, 3))))
    fractions = _fractions(rng, environments)
    request = _request(rng)
    mood = rng.choice(("quiet", "rough", "rough", "wild"))
    world = Scenario(
        laws=_laws(rng, group_size, environments, fractions, request),
        request=request,
        environments=environments,
        group_size=group_size,
        num_workers=rng.randint(1, 3),
        num_servers=rng.randint(1, 2),
        num_learners=rng.choice((1, 2, 2)),
        episodes_per_worker=rng.randint(2, 5),
        checkpoint_interval=rng.randint(1, 4),
        keep_newest=rng.randint(1, 3),
        resume=rng.choice(("replay", "replay", "recut", "either")),
        unsteady=rng.random() < 0.1,
        skip_rate=rng.choice((0.0, 0.05, 0.2)),
        failure_rate=rng.choice((0.0, 0.05, 0.25)),
        weather=_weather(rng, mood),
        commit_seconds=rng.choice((0.02, 0.05, 0.4)),
        seconds_between_faults={"quiet": float("inf"), "rough": rng.uniform(1.5, 5.0), "wild": rng.uniform(0.8, 2.0)}[mood],
        calm_after_events=rng.randint(1600, 2100),
    )
    return replace(world, laws=replace(world.laws, filters=_filters(rng)))


def _filters(rng: Random) -> dict[str, dict[str, float]]:
    """Mostly none. Rewards are even or odd, so of small groups many have but one."""
    return rng.choice(({}, {}, {}, {"zero_variance": {}}, {"staleness": {"max_lag": float(rng.randint(0, 2))}, "zero_variance": {}}))


def _fractions(rng: Random, environments: tuple[str, ...]) -> dict[str, float]:
    style = rng.choice(("none", "all", "some"))
    if style == "none":
        return {}
    named = environments if style == "all" else environments[: max(1, len(environments) - 1)]
    whole = 1.0 if style == "all" else 0.6
    weights = [rng.choice((1, 1, 2)) for _ in named]
    return {name: round(whole * weight / sum(weights), 3) for name, weight in zip(named, weights, strict=True)}


def _request(rng: Random) -> CutRequest:
    order: Literal["oldest", "newest"] = "oldest" if rng.random() < 0.7 else "newest"
    short: Literal["block", "spill"] = "block" if rng.random() < 0.7 else "spill"
    if rng.random() < 0.5:
        return CutRequest(groups_per_update=rng.randint(1, 3), order=order, short=short, spill_after_seconds=3.0)
    return CutRequest(budget_tokens=rng.randint(120, 320), order=order, short=short, spill_after_seconds=3.0)


def _laws(rng: Random, group_size: int, environments: tuple[str, ...], fractions: dict[str, float], request: CutRequest) -> Laws:
    max_lag = rng.randint(0, 4)
    group_tokens = (LONGEST_PROMPT_TOKENS + group_size * LONGEST_REPLY_TOKENS) // 2
    batch_tokens = request.budget_tokens or (request.groups_per_update or 1) * group_tokens
    unnamed = [name for name in environments if name not in fractions]
    shares = [*fractions.values(), *((1.0 - sum(fractions.values())) / len(unnamed) for _ in unnamed)]
    # A share that must be met group by group needs room for the group that overdraws it, and for what it is owed from before;
    # with less, a blocking cut would wait for a group that no credit is left for.
    room = 2.5 * group_tokens / min(shares)
    return Laws(
        max_lag=max_lag,
        min_group_size=rng.randint(2, group_size),
        max_retries=rng.randint(0, 3),
        max_reuse=rng.choice((1, 2)),
        credit_tokens=int(min(max_lag + 1, 3) * batch_tokens + room),
        fractions=fractions,
        annotations=rng.choice(((), (), ("judge",))),
        session_seconds=LEASE_SECONDS,
        term_seconds=LEASE_SECONDS,
        endangered=rng.choice(("drop", "drop", "wait")),
    )


def _weather(rng: Random, mood: str) -> Weather:
    if mood == "quiet":
        return Weather()
    scale = 1.0 if mood == "rough" else 3.0
    return Weather(
        drop=scale * rng.uniform(0.0, 0.03), duplicate=scale * rng.uniform(0.01, 0.05), slow=scale * rng.uniform(0.0, 0.05), late=rng.uniform(0.1, 0.6)
    )
