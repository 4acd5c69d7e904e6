"""Replies that an engine gave up half way are continued from the same tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from penstock.clock import Clock
from penstock.errors import InfraError
from penstock.gateway.engine import FIRST_WAIT_SECONDS
from penstock.gateway.sampling import Engine, OnTokens, Order, Sampled


async def sample_whole(
    engine: Engine, order: Order, *, deadline_seconds: float, clock: Clock, is_gone: Callable[[], bool], on_tokens: OnTokens | None = None
) -> list[Sampled]:
    """As `Engine.sample`, and what an engine gave up half way (to load weights, or to stop) is continued from the same tokens, unless its client is gone."""
    deadline = clock.monotonic() + deadline_seconds
    replies = await engine.sample(order, deadline_seconds=deadline_seconds, on_tokens=on_tokens)
    for index, reply in enumerate(replies):
        part = 0
        while reply.finish == "abort" and len(reply.ids) < order.max_tokens and not is_gone():
            part += 1
            if clock.monotonic() + FIRST_WAIT_SECONDS >= deadline:
                raise InfraError(f"the engine aborted a reply {part} times and did not finish it within {deadline_seconds:g} s")
            if not reply.ids:
                await clock.sleep(FIRST_WAIT_SECONDS)
            (more,) = await engine.sample(
                _rest(order, reply, index, part), deadline_seconds=deadline - clock.monotonic(), on_tokens=_behind(on_tokens, index, reply)
            )
            _join(reply, more)
        if reply.finish == "abort" and len(reply.ids) == order.max_tokens:
            reply.finish = "length"
    return replies


def _rest(order: Order, reply: Sampled, index: int, part: int) -> Order:
    return replace(
        order,
        ids=np.concatenate([order.ids, np.array(reply.ids, np.int32)]),
        num_choices=1,
        max_tokens=order.max_tokens - len(reply.ids),
        seed=(order.seed + 7919 * (index + 1) + part) % 2**63,
        spelled=b"",
    )


def _behind(on_tokens: OnTokens | None, index: int, reply: Sampled) -> OnTokens | None:
    if on_tokens is None:
        return None

    def tell(_: int, more: Sampled) -> None:
        on_tokens(index, Sampled(ids=reply.ids + more.ids, logprobs=reply.logprobs + more.logprobs, alternatives=reply.alternatives + more.alternatives))

    return tell


def _join(reply: Sampled, more: Sampled) -> None:
    reply.ids += more.ids
    reply.logprobs += more.logprobs
    reply.alternatives += more.alternatives
    reply.versions += more.versions
    reply.finish, reply.stop_text, reply.sampler = more.finish, more.stop_text, more.sampler
