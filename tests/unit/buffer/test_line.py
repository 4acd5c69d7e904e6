"""Who waits for a commit, and when the next one begins."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future

from penstock.buffer.service import ENOUGH_CAME, QUIET_TURNS, Line


class Crowd:
    """People who wait in a line, and count how many of them had come when the next commit began."""

    def __init__(self) -> None:
        self.line = Line(lambda failure: RuntimeError(str(failure)))
        self.num_came = 0
        self.began_with: list[int] = []
        self.under_way: Future[None] = Future()

    async def wait(self, commit: Future[None]) -> None:
        self.num_came += 1
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.line.wait(commit, (place, None))
        await place

    async def come_again(self, num_turns: int) -> None:
        """Wait for the commit that is under way, and so many turns later for the next."""
        await self.wait(self.under_way)
        for _ in range(num_turns):
            await asyncio.sleep(0)
        await self.wait(Future())

    def begin(self) -> None:
        self.began_with.append(self.num_came)


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_commit_begins_at_once_if_none_is_under_way() -> None:
    crowd = Crowd()
    crowd.line.at_turn_end(crowd.begin)
    assert crowd.began_with == []
    await turns(1)
    assert crowd.began_with == [0]


async def test_those_whom_a_commit_let_go_are_in_the_next_if_they_come_again_soon() -> None:
    crowd = Crowd()
    # Each a little later than the one before: nobody after a longer pause than is waited for.
    coming = [asyncio.create_task(crowd.come_again(number * QUIET_TURNS)) for number in range(5)]
    await turns(1)
    crowd.line.at_turn_end(crowd.begin)
    await turns(3 * QUIET_TURNS)
    assert crowd.began_with == []
    crowd.under_way.set_result(None)
    await turns(8 * QUIET_TURNS)
    assert crowd.began_with == [10]
    for task in coming:
        task.cancel()


async def test_a_commit_does_not_wait_for_those_who_do_not_come() -> None:
    crowd = Crowd()
    waiting = asyncio.create_task(crowd.wait(crowd.under_way))
    late = asyncio.create_task(crowd.come_again(4 * QUIET_TURNS))
    await turns(1)
    crowd.line.at_turn_end(crowd.begin)
    crowd.under_way.set_result(None)
    await turns(3 * QUIET_TURNS)
    assert crowd.began_with == [2]
    await waiting
    late.cancel()
    # Nor does it begin again after a commit that nobody asked for another behind.
    done: Future[None] = Future()
    waiting = asyncio.create_task(crowd.wait(done))
    await turns(1)
    done.set_result(None)
    await turns(3 * QUIET_TURNS)
    assert crowd.began_with == [2]
    await waiting


async def test_a_stream_of_people_does_not_keep_a_commit_from_beginning() -> None:
    crowd = Crowd()
    tasks = [asyncio.create_task(crowd.wait(crowd.under_way))]
    await turns(1)
    crowd.line.at_turn_end(crowd.begin)
    crowd.under_way.set_result(None)
    later: Future[None] = Future()
    while not crowd.began_with:
        tasks.append(asyncio.create_task(crowd.wait(later)))
        await turns(1)
        assert len(tasks) < 4 * ENOUGH_CAME
    assert abs(crowd.began_with[0] - ENOUGH_CAME) <= QUIET_TURNS
    for task in tasks:
        task.cancel()
