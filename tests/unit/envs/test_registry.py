"""Environments by name, and the slow one."""

from __future__ import annotations

import asyncio

import pytest

from penstock.envs import Delayed, Environment, GuessEnvironment, Reply, SortEnvironment, environment
from penstock.errors import ConfigError
from penstock.problems import Split
from penstock.testing.clock import FakeClock
from penstock.types import Problem


class Plain:
    """An environment that is not a dataclass, as an outsider may write it."""

    def __init__(self, level: int = 1) -> None:
        self.level = level


def test_kinds_are_found_by_name_and_by_module() -> None:
    assert environment("sort", {"max_digits": 5}) == SortEnvironment(max_digits=5)
    assert environment("penstock.envs.guess:GuessEnvironment", {"largest": 20}) == GuessEnvironment(largest=20)
    made: object = environment(f"{__name__}:Plain", {"level": 3})
    assert getattr(made, "level", None) == 3


@pytest.mark.parametrize(
    ("kind", "params", "told"),
    [
        ("sorted", {}, "did you mean 'sort'"),
        ("no.such.module:Env", {}, "cannot be imported"),
        ("penstock.envs.sort:Nothing", {}, "cannot be imported"),
        ("penstock.envs.sort:_HELD_OUT_ONE_IN", {}, "makes nothing"),
        ("sort", {"max_digitz": 5}, "did you mean max_digits"),
        ("sort", {"max_digits": "5"}, "must be an integer"),
        ("sort", {"min_digits": 9}, "min_digits"),
        (f"{__name__}:Plain", {"levels": 3}, "does not take"),
    ],
)
def test_a_wrong_kind_or_setting_is_told(kind: str, params: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        environment(kind, params)


@pytest.mark.parametrize("kind", ["sort", "guess"])
def test_the_built_in_ones_are_environments_with_two_disjoint_splits(kind: str) -> None:
    made: Environment = environment(kind)
    names = {made.problems(split).name for split in Split}
    assert len(names) == 2
    assert made.make() is not made.make()


async def test_a_delayed_environment_waits_before_each_step_and_is_the_same_otherwise() -> None:
    clock = FakeClock()
    env = Delayed(env=SortEnvironment().make(), latency_seconds=2.0, clock=clock)
    await env.open(Problem(id="p", environment="sort", prompt="sort 21>", ground_truth="12"), 0)
    step = asyncio.create_task(env.step(Reply(text="12")))
    await clock.advance(1.9)
    assert not step.done()
    await clock.advance(0.2)
    assert (await step).done
