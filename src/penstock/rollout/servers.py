"""Several inference servers as one. Which of them a request goes to is decided in `loads`; here it is asked, and asked again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from penstock.clock import Clock, SystemClock
from penstock.errors import InfraError
from penstock.inference.client import Continuation, NoAnswer, Placing, PromptTexts, Reply, completion_body
from penstock.rollout.loads import Loads, Wish

DEADLINE_SECONDS = 600.0
MOST_WRONG_ANSWERS = 3
"""Answers that cannot be read before a request gives up. Lost connections and full servers are waited out until its deadline."""


T = TypeVar("T")


class Server(Protocol):
    """One of them: `InferenceClient`."""

    async def reply_once(self, body: bytes, *, deadline_seconds: float) -> Reply:
        """See `InferenceClient.reply_once`."""


class Servers:
    """All servers of a worker. Its environments share them, each through a `sampler` of its own."""

    def __init__(self, servers: Sequence[Server], clock: Clock | None = None) -> None:
        self._servers = tuple(servers)
        self._clock = clock or SystemClock()
        self._loads = Loads(len(self._servers))
        self.prompts = PromptTexts()
        """What was sent last for each episode."""
        self._places: dict[Wish, asyncio.Future[int]] = {}
        """Of those who wait."""
        self._waking: asyncio.Task[None] | None = None
        self._wakes_at = 0.0

    def sampler(self, environment: str = "", *, weight: float = 1.0, waited: Callable[[float], None] | None = None) -> PooledSampler:
        """For an environment. `waited` is told the seconds that a request had to wait because no server had room."""
        return PooledSampler(self, environment, weight, waited or (lambda seconds: None))

    def placing(self, environment: str = "", *, weight: float = 1.0, waited: Callable[[float], None] | None = None) -> Placing:
        """As `sampler`, for whoever talks to the servers in a way of its own: the gateway in front of an environment's agents."""

        async def place(call: Callable[[int, float], Awaitable[T]], *, affinity: str | None, deadline_seconds: float) -> T:
            wish = Wish(environment=environment, affinity=affinity, weight=weight)
            return await self.ask(wish, call, deadline_seconds, waited or (lambda seconds: None))

        return place

    def reply(self, wish: Wish, body: bytes, deadline_seconds: float, waited: Callable[[float], None]) -> Awaitable[Reply]:
        """What a server answers to a completion. See `ask`."""
        return self.ask(wish, lambda index, seconds: self._servers[index].reply_once(body, deadline_seconds=seconds), deadline_seconds, waited)

    async def ask(self, wish: Wish, call: Callable[[int, float], Awaitable[T]], deadline_seconds: float, waited: Callable[[float], None]) -> T:
        """What `call` gives. See `Placing`."""
        now = self._clock.monotonic()
        deadline = now + deadline_seconds
        num_wrong = 0
        while True:
            index = self._loads.ask(wish, now)
            if index is None:
                index = await self._place(wish, deadline, waited)
                now = self._clock.monotonic()
            try:
                answer = await call(index, deadline - now)
            except NoAnswer as trouble:
                now = self._clock.monotonic()
                (self._loads.full if trouble.is_full else self._loads.gone)(index, wish, now, trouble.named_seconds)
                num_wrong += not (trouble.is_full or trouble.is_lost)
                if num_wrong == MOST_WRONG_ANSWERS or now >= deadline:
                    raise InfraError(f"no server gave a reply within {deadline_seconds:g} s: {trouble}") from trouble
            except BaseException:
                self._loads.left(index, wish)
                raise
            else:
                self._loads.answered(index, wish)
                return answer
            finally:
                if self._places:
                    self._hand_out()

    async def _place(self, wish: Wish, deadline: float, waited: Callable[[float], None]) -> int:
        """Wait for a server that has room."""
        started = self._clock.monotonic()
        place: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._places[wish] = place
        self._hand_out()
        try:
            async with asyncio.timeout(deadline - started):
                return await place
        except BaseException as error:
            if place.done() and not place.cancelled():  # given up in the moment it was given
                self._loads.left(place.result(), wish)
                self._hand_out()
            else:
                self._loads.forget(wish)
            if isinstance(error, TimeoutError):
                raise InfraError(f"no server had room within {deadline - started:.1f} s") from None
            raise
        finally:
            self._places.pop(wish, None)
            waited(self._clock.monotonic() - started)

    def _hand_out(self) -> None:
        now = self._clock.monotonic()
        for wish, index in self._loads.admitted(now):
            place = self._places.pop(wish)
            if place.done():  # cancelled, and its task has not run yet
                self._loads.left(index, wish)
            else:
                place.set_result(index)
        wakes_at = self._loads.wakes_at(now)
        if self._places and wakes_at is not None and (self._waking is None or self._waking.done() or wakes_at < self._wakes_at):
            if self._waking is not None:
                self._waking.cancel()
            self._wakes_at = wakes_at
            self._waking = asyncio.create_task(self._wake(wakes_at - now))

    async def _wake(self, seconds: float) -> None:
        await self._clock.sleep(seconds)
        self._waking = None
        self._hand_out()


@dataclass(frozen=True, slots=True, eq=False)
class PooledSampler:
    """A `Sampler` over all servers, for one environment."""

    servers: Servers
    environment: str
    weight: float
    waited: Callable[[float], None]

    async def complete(self, wanted: Continuation, *, deadline_seconds: float | None = None) -> Reply:
        """See `InferenceClient.complete`. Requests with the same `affinity` go to the same server as long as that answers."""
        body = completion_body(wanted, self.servers.prompts)
        wish = Wish(environment=self.environment, affinity=wanted.affinity, weight=self.weight)
        return await self.servers.reply(wish, body, DEADLINE_SECONDS if deadline_seconds is None else deadline_seconds, self.waited)
