"""The training loop.

    cut -> fetch -> credit -> pack -> step -> record -> publish -> keep

Everything that can fail is behind one of these verbs, and each leaves something durable before the next begins: killed anywhere, the next life asks the
same questions and gets the same answers.
"""

from __future__ import annotations

from typing import Protocol

from penstock.learner.step import StepResult
from penstock.types import Group, Outcome, Plan, RlExample


class Plans(Protocol):
    """The buffer, as a learner under its term sees it."""

    async def cut(self, update: int) -> Plan:
        """The plan of an update; waits until there is one. The same plan whenever it is asked for."""

    async def fetch(self, plan: Plan) -> tuple[Group, ...]:
        """The groups of a plan."""

    async def record(self, plan: Plan, result: StepResult) -> Outcome:
        """Make what came of the plan durable, and give the outcome that stands."""


class Trainer(Protocol):
    """The arithmetic."""

    def batch(self, plan: Plan, groups: tuple[Group, ...]) -> RlExample:
        """Credit and pack."""

    async def step(self, plan: Plan, example: RlExample) -> StepResult:
        """Train on one batch; the new weights are in their file when this returns."""


class Publisher(Protocol):
    """The way to the inference servers."""

    async def publish(self, outcome: Outcome) -> None:
        """Make the weights of an outcome live; silent while replaying."""


class Keeper(Protocol):
    """Checkpoints."""

    next_update: int
    """Where this life starts."""

    async def after(self, update: int) -> int:
        """Keep a checkpoint if one is due, and give the next update."""


async def train(plans: Plans, trainer: Trainer, weights: Publisher, checkpoints: Keeper, updates: int) -> None:
    """Train until `updates` updates have an outcome.

    takes: ready groups       waits for: a plan (until enough groups are ready)
    gives: versions           ends: after the last update; a fenced term or a breach of agreement stops it with the reason
    """
    update = checkpoints.next_update
    while update < updates:
        plan = await plans.cut(update)
        result = await trainer.step(plan, trainer.batch(plan, await plans.fetch(plan)))
        # Record before publishing: servers must never sample from weights that no durable outcome names.
        outcome = await plans.record(plan, result)
        await weights.publish(outcome)
        update = await checkpoints.after(update)
