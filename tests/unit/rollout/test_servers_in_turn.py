"""Who is asked next, on a clock and with answers that are the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from penstock.inference.client import NoAnswer, Placing
from penstock.rollout.servers import Servers
from penstock.testing.clock import FakeClock

NOBODY: Any = None
"""In the place of servers, which are only counted here: whoever places a call makes it itself."""


class Desk:
    """Requests by name, each answered when and as the test says."""

    def __init__(self, num_servers: int) -> None:
        self.clock = FakeClock()
        self.servers = Servers([NOBODY] * num_servers, self.clock)
        self.calls: list[tuple[str, int, float]] = []
        """Name, server and seconds left of each call, in order."""
        self.on_return: Callable[[], object] = lambda: None
        """Called in the moment before an answer makes room."""
        self._answers: dict[str, asyncio.Future[str]] = {}

    @property
    def asked(self) -> list[str]:
        return [name for name, _, _ in self.calls]

    async def ask(self, name: str, place: Placing, affinity: str | None = None) -> asyncio.Task[str]:
        async def call(index: int, seconds: float) -> str:
            self.calls.append((name, index, seconds))
            self._answers[name] = asyncio.get_running_loop().create_future()
            answer = await self._answers[name]
            self.on_return()
            return answer

        asking = asyncio.create_task(place(call, affinity=affinity, deadline_seconds=600.0))
        await self.clock.advance(0.0)
        return asking

    async def answer(self, name: str, trouble: Exception | None = None) -> None:
        if trouble is None:
            self._answers[name].set_result("ok")
        else:
            self._answers[name].set_exception(trouble)
        await self.clock.advance(0.0)

    async def fill(self, place: Placing, waiting: Sequence[str]) -> list[asyncio.Task[str]]:
        """A server that has one request and no room, and others that wait for it after it has rested."""
        await self.ask("holder", place)
        asking = [await self.ask(waiting[0], place)]
        await self.answer(waiting[0], NoAnswer("full", is_full=True))
        asking += [await self.ask(name, place) for name in waiting[1:]]
        self.calls.clear()
        await self.clock.advance(10.0)
        return asking


async def test_a_place_goes_to_the_environment_that_has_the_least_for_its_weight() -> None:
    desk, waited = Desk(1), []
    light, heavy = desk.servers.placing("light"), desk.servers.placing("heavy", weight=3.0, waited=waited.append)
    await desk.fill(light, ["a1", "a2", "a3", "a4", "a5"])
    for name in ("b1", "b2"):
        await desk.ask(name, heavy)
    await desk.clock.advance(5.0)
    for name in ("holder", "a1", "a2", "a3"):
        await desk.answer(name)
    assert desk.asked == ["a1", "b1", "a2", "a3", "a4", "b2"]
    assert waited == [5.0, 5.0]
    assert [seconds for _, _, seconds in desk.calls] == [585.0, 595.0, 585.0, 585.0, 585.0, 595.0]


@pytest.mark.parametrize("is_given", [True, False], ids=["once it is given", "before"])
async def test_the_place_of_one_who_leaves_in_that_moment_goes_to_the_next(is_given: bool) -> None:
    desk = Desk(1)
    leaving, *_ = await desk.fill(desk.servers.placing(), ["leaving", "second", "third"])
    # An answer makes room for one more, so two are admitted at once.
    desk.on_return = (lambda: asyncio.get_running_loop().call_soon(leaving.cancel)) if is_given else leaving.cancel
    await desk.answer("holder")
    assert leaving.cancelled()
    assert desk.asked == ["second", "third"]


async def test_lost_connections_are_waited_out() -> None:
    desk = Desk(1)
    asking = await desk.ask("a", desk.servers.placing())
    for _ in range(5):
        await desk.answer("a", NoAnswer("lost", is_lost=True))
        await desk.clock.advance(10.0)
    await desk.answer("a")
    assert await asking == "ok"


async def test_a_request_that_fails_leaves_no_place_taken() -> None:
    desk = Desk(2)
    place = desk.servers.placing()
    asking = await desk.ask("bad", place)
    await desk.answer("bad", ValueError("not the server's fault"))
    with pytest.raises(ValueError, match="not the server's fault"):
        await asking
    await desk.ask("next", place)
    assert [index for _, index, _ in desk.calls] == [0, 0]


async def test_a_server_that_has_rested_is_asked_though_another_rests_longer() -> None:
    desk = Desk(2)
    place = desk.servers.placing()
    for name in ("long", "short"):
        await desk.ask(name, place, affinity=name)
    await desk.answer("long", NoAnswer("full", is_full=True, named_seconds=0.5))
    await desk.answer("short", NoAnswer("full", is_full=True))
    desk.calls.clear()
    await desk.clock.advance(0.2)
    assert desk.asked == ["short"]
    await desk.clock.advance(0.4)
    assert desk.asked == ["short", "long"]
