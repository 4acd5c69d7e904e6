"""Several inference servers as one: each request goes to the one with the least under way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from penstock.inference.client import Reply
from penstock.rollout.policy import Sampler
from penstock.types import Int32Array


class LeastLoaded:
    """A `Sampler` over others. A server that does not answer keeps its requests, which wait for it until their deadline, so new ones go elsewhere."""

    def __init__(self, samplers: Sequence[Sampler]) -> None:
        self._samplers = tuple(samplers)
        self._under_way: Counter[int] = Counter()

    async def complete(
        self,
        ids: Sequence[int] | Int32Array,
        *,
        max_tokens: int,
        temperature: float = 1.0,
        seed: int | None = None,
        stop: Sequence[str] = (),
        stop_ids: Sequence[int] = (),
        request_id: str | None = None,
        deadline_seconds: float | None = None,
    ) -> Reply:
        """See `InferenceClient.complete`."""
        chosen = min(range(len(self._samplers)), key=lambda index: self._under_way[index])
        self._under_way[chosen] += 1
        try:
            return await self._samplers[chosen].complete(
                ids,
                max_tokens=max_tokens,
                temperature=temperature,
                seed=seed,
                stop=stop,
                stop_ids=stop_ids,
                request_id=request_id,
                deadline_seconds=deadline_seconds,
            )
        finally:
            self._under_way[chosen] -= 1
