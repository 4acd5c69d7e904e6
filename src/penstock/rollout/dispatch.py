"""The dispatcher: opens the next groups of an environment while its credits last."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from penstock.buffer.api import OpenGroup
from penstock.buffer.client import BufferClient
from penstock.clock import Clock
from penstock.envs.demonstrations import opening_messages
from penstock.problems import Position, Split, group_id
from penstock.rollout.config import ActorConfig
from penstock.rollout.dialogue import Prompts
from penstock.rollout.seeds import derived_seed
from penstock.rollout.supply import Supply
from penstock.types import Problem

CREDIT_WAIT_SECONDS = 20.0
"""How long the buffer holds a request that waits for credit, before it is asked again."""
_GROUPS_AT_ONCE = 16


class Dispatcher:
    """For one environment. Others may do the same for it: opening a group twice opens it once, and both go on where the buffer's cursor stands."""

    def __init__(self, client: BufferClient, supply: Supply, prompts: Prompts | None, actor: ActorConfig, *, seed: int, clock: Clock) -> None:
        self._client, self._supply, self._prompts, self._actor, self._seed, self._clock = client, supply, prompts, actor, seed, clock
        self._source = supply.source(Split.TRAIN)
        self._source_name = supply.source_name(Split.TRAIN)
        self._next = Position()
        self._ahead: deque[OpenGroup] = deque()

    async def run(self, waited: Callable[[float], None]) -> None:
        """Open groups for ever.

        takes: a problem        waits for: credit (long poll), returned when the weights that a group trained are live, or when it is dropped
        gives: an open group    ends: never; a buffer that does not answer stops it
        """
        await self._catch_up()
        while True:
            while len(self._ahead) < _GROUPS_AT_ONCE:
                self._ahead.append(self._group(self._next))
                self._next = self._next.after(self._source.size)
            started = self._clock.monotonic()
            opened = await self._client.open_groups(tuple(self._ahead), wait_seconds=CREDIT_WAIT_SECONDS)
            waited(self._clock.monotonic() - started)
            for _ in range(opened.opened):
                self._ahead.popleft()
            if opened.created < opened.opened:  # somebody else is ahead
                await self._catch_up()

    async def _catch_up(self) -> None:
        """Go on after the last group that anybody has opened."""
        last = (await self._client.status()).cursors.get(self._source_name)
        self._next = Position() if last is None else Position(pass_=last[0], index=last[1]).after(self._source.size)
        self._ahead.clear()

    def _group(self, position: Position) -> OpenGroup:
        problem = self._source.problem(position.pass_, position.index)
        id = group_id(self._source_name, position)
        return OpenGroup(
            id=id,
            environment=self._supply.name,
            problem_id=problem.id,
            size=self._actor.group_size,
            seed=derived_seed(self._seed, "group", id),
            first_estimate=self._actor.group_size * (self._prompt_tokens(problem) + self._actor.max_tokens),
        )

    def _prompt_tokens(self, problem: Problem) -> int:
        """As far as the problem itself tells; what an environment adds shows in the running mean."""
        if not problem.prompt or self._prompts is None:
            return 0
        return sum(len(shown.tokens.ids) for shown in self._prompts.open(opening_messages(problem)))
