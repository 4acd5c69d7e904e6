"""What an engine is asked, and what it has to say so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from penstock.inference.engine.pools import Seat
from penstock.inference.engine.sampling import Drawn, Randomness, Sampling
from penstock.types import Evidence, Int32Array, VersionRun


class Finish(StrEnum):
    """Why a reply ended."""

    STOP = "stop"
    """An end token, a stop id or a stop string."""
    LENGTH = "length"
    """`max_tokens`, or the end of the context."""
    ABORT = "abort"
    """Somebody asked for it; what was sampled so far is kept."""
    ERROR = "error"
    """The weights gave no number."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Request:
    """`num_choices` replies to one prompt."""

    id: str
    prompt: Int32Array
    max_tokens: int
    num_choices: int = 1
    sampling: Sampling = field(default_factory=Sampling)
    stop_ids: frozenset[int] = frozenset()
    """Tokens that end a reply; they are part of it."""
    stop_texts: tuple[str, ...] = ()

    @property
    def reserved_tokens(self) -> int:
        """Places of the cache that the replies can come to need."""
        return self.num_choices * (len(self.prompt) + self.max_tokens)


@dataclass(slots=True, eq=False)
class Choice:
    """One reply, while it is being made and afterwards."""

    request: Request
    index: int
    randomness: Randomness
    cached_tokens: int = 0
    """Tokens of the prompt that did not have to be computed."""
    drawn: list[Drawn] = field(default_factory=list)
    versions: list[VersionRun] = field(default_factory=list)
    """By whom the tokens were sampled, in order."""
    mixed_kv: bool = False
    finish: Finish | None = None
    stop_text: str | None = None
    """The stop string that ended the reply."""
    seat: Seat | None = None
    """Where its keys and values are, all but those of the last token; None before and after."""

    @property
    def ids(self) -> list[int]:
        """Sampled tokens."""
        return [token.id for token in self.drawn]

    def sampled(self, token: Drawn, policy: str, version: int) -> None:
        """Append a token that `version` of `policy` has sampled."""
        self.drawn.append(token)
        last = self.versions[-1] if self.versions else None
        if last is not None and (last.policy, last.version, last.mixed_kv) == (policy, version, self.mixed_kv):
            self.versions.pop()
            count = last.count + 1
        else:
            count = 1
        self.versions.append(VersionRun(policy=policy, version=version, count=count, mixed_kv=self.mixed_kv, evidence=Evidence.DIGEST))
