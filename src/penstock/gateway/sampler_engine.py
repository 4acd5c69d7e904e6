"""An engine in this process, as the gateway sees one: for evaluations, which sample without a server."""

from __future__ import annotations

import asyncio

from penstock.errors import BadRequestError
from penstock.gateway.sampling import OnTokens, Order, Sampled
from penstock.inference.client import Continuation, Sampler


class SamplerEngine:
    """An `Engine` over a `Sampler`. Has no filters and no alternatives, and tells a reply when it is whole."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    async def sample(self, order: Order, *, deadline_seconds: float, on_tokens: OnTokens | None = None) -> list[Sampled]:
        """See `Engine`."""
        if order.filters:
            raise BadRequestError(f"{next(iter(order.filters))} is not served here; leave it out", next(iter(order.filters)))
        replies = await asyncio.gather(*(self._one(order, index, deadline_seconds) for index in range(order.num_choices)))
        for index, reply in enumerate(replies):
            if on_tokens is not None:
                on_tokens(index, reply)
        return list(replies)

    async def abort(self, request_id: str) -> None:
        """See `Engine`. Whoever does not wait any more cancels."""

    async def _one(self, order: Order, index: int, deadline_seconds: float) -> Sampled:
        wanted = Continuation(
            ids=order.ids,
            max_tokens=order.max_tokens,
            temperature=order.temperature,
            seed=(order.seed + index) % 2**63,
            stop=order.stop,
            stop_ids=order.stop_ids,
        )
        reply = await self._sampler.complete(wanted, deadline_seconds=deadline_seconds)
        return Sampled(
            ids=reply.ids.tolist(),
            logprobs=reply.logprobs.tolist(),
            versions=list(reply.versions),
            finish=reply.metadata.finish_reason,
            usage=reply.metadata.usage,
            sampler=reply.metadata.sampler,
        )
