"""An environment that could not be made fails its episode, like one that fails later."""

from __future__ import annotations

from collections.abc import Callable

from penstock.envs.protocol import Env, Observation, Reply, Rewards
from penstock.types import Problem, Rollout


def made(make: Callable[[], Env]) -> Env:
    """What `make` makes; if it raises, an `Env` that raises the same when it is opened, where somebody turns it into a status."""
    try:
        return make()
    except (Exception, SystemExit) as error:
        return _Unmade(error)


class _Unmade:
    def __init__(self, error: BaseException) -> None:
        self._error = error

    async def open(self, problem: Problem, seed: int) -> Observation:
        raise self._error

    async def step(self, reply: Reply) -> Observation:
        raise self._error

    async def score(self, rollout: Rollout) -> Rewards:
        raise self._error
