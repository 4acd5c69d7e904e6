"""What happens in a session, as its journal has it. A session is nothing but these, one after another: replayed, they give the same session again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from penstock.chat import Piece
from penstock.types import Float32Array, Int32Array, Json, Message, Purpose, RolloutStatus, SamplerFacts, Usage, VersionRun
from penstock.types.frozen import quickly_made

Repeats = Literal["retry", "sample"]
"""What the same request again means: the client did not get the first reply (the older one is abandoned), or it wants one more (both are kept)."""


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """The place in the buffer that a session fills."""

    run: str
    environment: str
    problem_id: str
    group_id: str
    member: int
    retry: int
    purpose: Purpose = Purpose.TRAIN

    @property
    def uid(self) -> str:
        """Of the rollout: one for each try at a slot."""
        return f"{self.group_id}:{self.member}:{self.retry}"


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How the replies of a session are sampled, whatever its client asks for."""

    temperature: float | None = None
    """Used in place of the client's; None leaves that to the client."""
    max_tokens: int | None = None
    """Of a reply, where the client names no limit; None: the gateway's own."""
    allow_filters: bool = False
    """Take requests whose sampling is bent away from the policy (`top_p` and the like). Their tokens are stored and not trained on."""
    repeats: Repeats = "retry"


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The session begins."""

    session: str
    slot: Slot
    seed: int
    deadline_at: float
    """Seconds since 1970; a session that is still open then has failed."""
    manner: Manner = field(default_factory=Manner)
    metadata: Mapping[str, Json] = field(default_factory=dict)


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Choice:
    """One sampled reply."""

    ids: Int32Array
    logprobs: Float32Array
    versions: tuple[VersionRun, ...]
    text: str
    """All that the tokens spell, without the one that ended the reply."""
    message: Message
    """As the client was told."""
    finish: str
    """As the engine said."""
    usage: Usage = field(default_factory=Usage)


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replied:
    """A request was answered: what its messages added to what was known, and what was sampled."""

    id: str
    """By which its client knows the answer."""
    request: str
    """Digest that names the request: the same bytes, or the same idempotency key, have the same."""
    tools: str
    """Digest of the tools that it offered."""
    parent: int | None
    """Point of the conversation that the prompt goes on from; None for a new root."""
    shared: int
    """Messages that it has in common with that point."""
    keep: int
    """Tokens that it has in common with that point."""
    messages: tuple[Message, ...]
    """The others."""
    pieces: tuple[Piece, ...]
    """Their tokens, with message indices counted through all messages."""
    choices: tuple[Choice, ...]
    sampler: SamplerFacts
    gone: bool = False
    """The client had left before the reply was complete."""

    def close(self) -> None:
        """Close its arrays for writing, as those are that a template or an engine has given: for one that comes from a journal."""
        for piece in self.pieces:
            piece.ids.setflags(write=False)
        for choice in self.choices:
            choice.ids.setflags(write=False)
            choice.logprobs.setflags(write=False)


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Rewarded:
    """A reward was given: to the session, or to one of its replies. Given again under the same name, it replaces the first."""

    rewards: Mapping[str, float] = field(default_factory=dict)
    reply: int | None = None
    """Which point of the conversation; None for the session."""
    own: float | None = None
    """Of a reply: its reward as a whole. Without it, the sum of the named ones."""


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """Nothing more is said."""

    status: RolloutStatus
    failure: str | None = None
    error: str | None = None
    """What failed, in one word."""
    metadata: Mapping[str, Json] = field(default_factory=dict)


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """The rollout is in the buffer, or will never be."""

    fate: str
    """`accepted`, `duplicate`, `stale`, or why it was refused."""
    message: str = ""
    digest: str = ""


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Event:
    """One entry of a journal: exactly one of the others, and when."""

    at: int
    """Milliseconds since 1970."""
    opened: Opened | None = None
    replied: Replied | None = None
    rewarded: Rewarded | None = None
    ended: Ended | None = None
    stored: Stored | None = None
