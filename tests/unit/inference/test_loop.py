from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.errors import ConflictError, InfraError, LimitError
from penstock.inference.engine.requests import Finish
from penstock.inference.loop import EngineLoop

LONG = 900


class Failed(asyncio.Event):
    """Set when the loop reports that it failed."""


async def started(engine: Any) -> tuple[EngineLoop, Failed]:
    failed = Failed()
    loop = EngineLoop(engine, on_failure=failed.set)
    loop.start()
    return loop, failed


async def test_a_reply_comes_once_when_it_has_ended(llama: Any, asked: Any) -> None:
    loop, _ = await started(llama.engine())
    ticket = loop.submit([asked([1, 2], max_tokens=5), asked([3], max_tokens=7)], is_streamed=False)
    ended = [await ticket.next(), await ticket.next()]
    assert {len(choice.drawn) for choice in ended} == {5, 7}
    assert ticket.news.empty()
    await loop.close()
    assert not loop.is_alive


async def test_more_than_may_wait_are_refused(llama: Any, asked: Any) -> None:
    loop, _ = await started(llama.engine(max_running=1, max_queued=2))
    tickets = [loop.submit([asked([1], max_tokens=LONG)], is_streamed=True)]
    assert (await tickets[0].next()).finish is None
    tickets += [loop.submit([asked([1], max_tokens=LONG)], is_streamed=False) for _ in range(2)]
    with pytest.raises(LimitError):
        loop.submit([asked([1])], is_streamed=False)
    assert await loop.abort(None) == 3
    assert [(await ticket.next()).finish for ticket in tickets[1:]] == [Finish.ABORT] * 2
    await loop.close()


async def test_whoever_waits_is_told_when_the_engine_fails(llama: Any, asked: Any) -> None:
    engine = llama.engine()
    loop, failed = await started(engine)
    ticket = loop.submit([asked([1], max_tokens=LONG)], is_streamed=True)
    assert (await ticket.next()).finish is None

    def break_it() -> None:
        engine._rotations = engine._rotations[:1]  # as if memory had been lost

    await loop.call(break_it)
    with pytest.raises(InfraError):
        while True:
            await ticket.next()
    await failed.wait()
    assert loop.has_failed and not loop.is_alive
    with pytest.raises(InfraError):
        loop.submit([asked([1])], is_streamed=False)
    with pytest.raises(InfraError):
        await loop.abort(None)
    await loop.close()


async def test_a_refusal_inside_the_engine_reaches_the_caller_and_nobody_else(llama: Any, asked: Any) -> None:
    engine = llama.engine()
    loop, failed = await started(engine)
    wrong = llama.served(0, llama.other_model(1))
    with pytest.raises(ConflictError):
        await loop.call(lambda: engine.swap(wrong))
    ticket = loop.submit([asked([1], max_tokens=3)], is_streamed=False)
    assert len((await ticket.next()).drawn) == 3
    assert not failed.is_set()
    await loop.close()
