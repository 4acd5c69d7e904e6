"""What is asked of whoever samples, and what comes back: token ids in both directions."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from penstock.types import Float32Array, Int32Array, Json, SamplerFacts, Usage, VersionRun
from penstock.types.frozen import quickly_made


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What an engine is asked for."""

    ids: Int32Array
    num_choices: int
    max_tokens: int
    temperature: float
    seed: int
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    num_alternatives: int = 0
    filters: Mapping[str, Json] = field(default_factory=dict)
    affinity: str = ""
    """Requests with the same one go to the same server while it answers: it has the beginning of the conversation in its cache."""
    request_id: str = ""
    spelled: bytes = b""
    """The ids as JSON, without the brackets around them, if somebody has it."""


_NO_USAGE, _NO_FACTS = Usage(), SamplerFacts()
"""Until an engine tells more. One of each for all: nobody can change them."""


@quickly_made
@dataclass(slots=True, kw_only=True, eq=False)
class Sampled:
    """One reply, as far as it has come."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    alternatives: list[Mapping[str, float]] = field(default_factory=list)
    """For each token, the likeliest texts, if they were asked for."""
    versions: list[VersionRun] = field(default_factory=list)
    finish: str = ""
    stop_text: str | None = None
    usage: Usage = _NO_USAGE
    sampler: SamplerFacts = _NO_FACTS

    def arrays(self) -> tuple[Int32Array, Float32Array]:
        """Ids and logprobs, closed for writing."""
        # By way of bytes, which are closed as they are: that costs half of what it takes to make arrays of lists and to close them.
        packed_ids, packed_logprobs = struct.pack(f"{len(self.ids)}i", *self.ids), struct.pack(f"{len(self.logprobs)}f", *self.logprobs)
        return np.frombuffer(packed_ids, np.int32), np.frombuffer(packed_logprobs, np.float32)


OnTokens = Callable[[int, Sampled], None]
"""Called with the number of a choice and what there is of it, each time it has grown."""


class Engine(Protocol):
    """Samples."""

    async def sample(self, order: Order, *, deadline_seconds: float, on_tokens: OnTokens | None = None) -> list[Sampled]:
        """All choices, in order. Raises `BadRequestError` if the engine refuses the request, `InfraError` if it gives no answer in time."""

    async def abort(self, request_id: str) -> None:
        """Have a request end with what there is of it, if the engine can."""
