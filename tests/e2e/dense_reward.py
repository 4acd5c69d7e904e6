"""An environment that rewards any reply a little, so that even random weights change with every update: kind `dense_reward:DenseReward`.

Imported by the processes of a run, which find it because its directory is on their PYTHONPATH.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.envs import Observation, Reply, Rewards
from penstock.problems import ListedProblems, Split
from penstock.types import Message, Problem, Rollout, Source


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseReward:
    """A few short prompts, over and over."""

    def problems(self, split: Split) -> ListedProblems:
        """See `Environment`."""
        words = ("one", "two", "three", "four") if split is Split.TRAIN else ("five", "six")
        return ListedProblems(name=split.value, problems=[Problem(id=word, environment="dense", prompt=f"{word}>") for word in words])

    def make(self) -> DenseEnv:
        """See `Environment`."""
        return DenseEnv()


class DenseEnv:
    """One question; the higher the tokens of the reply, the better."""

    async def open(self, problem: Problem, seed: int) -> Observation:
        """See `Env`."""
        return Observation(messages=(Message(role="user", content=str(problem.prompt)),))

    async def step(self, reply: Reply) -> Observation:
        """See `Env`."""
        return Observation(done=True)

    async def score(self, rollout: Rollout) -> Rewards:
        """See `Env`."""
        ids = [int(token) for segment in rollout.trace.segments if segment.source is Source.SAMPLED for token in segment.ids]
        return {"height": sum(ids) / (512 * len(ids))}
