"""What a model saw and said, as token ids. A trace is a tree of segments; messages are marks on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.types.frozen import quickly_made
from penstock.types.words import Word

Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
NamedArrays = Mapping[str, npt.NDArray[Any]]
"""Per-token arrays by name (values, teacher logprobs, entropies, router choices), each as long as its segment."""
Json = Any
"""A value made of None, bool, int, finite float, str, list and dict with str keys."""


class Source(Word):
    """Where the tokens of a segment come from. Loss lies on `sampled` ones; whether also on `injected` ones is up to the objective."""

    SAMPLED = "sampled"
    TEMPLATE = "template"
    ENV = "env"
    INJECTED = "injected"


class Evidence(Word):
    """How the version of a sampled token is known."""

    DIGEST = "digest"
    """The engine hashed the tensors it serves."""
    CANARY = "canary"
    """Another engine passed a logprob probe after the push."""
    ASSERTED = "asserted"
    """Somebody says so."""


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRun:
    """So many tokens in a row were sampled by this version of this policy."""

    policy: str
    """Name of the model that sampled. A summariser or an opponent is another policy; its tokens never carry our loss."""
    version: int
    """Number of the published weights; see `Version`."""
    count: int
    """How many tokens, 1 or more."""
    mixed_kv: bool = False
    """True if the cache behind these tokens was partly computed by older weights."""
    evidence: Evidence = Evidence.ASSERTED


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerFacts:
    """How the engine was told to sample one reply."""

    temperature: float = 1.0
    filters: Mapping[str, float] = field(default_factory=dict)
    """What bent the distribution away from the policy's: top_p, top_k, min_p, penalties. Empty for training traffic."""
    template_digest: str = ""
    tokenizer_digest: str = ""
    engine: str = ""
    dtype: str = ""


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What one reply cost."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    sampled_tokens: int = 0
    seconds: float = 0.0


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceMetadata:
    """Facts about one sampled reply that are not tokens."""

    sampler: SamplerFacts = field(default_factory=SamplerFacts)
    usage: Usage = field(default_factory=Usage)
    finish_reason: str = ""
    """`stop`, `length`, `tool_calls` or `abort`, as the engine said."""


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One chat message, as a client sends it."""

    role: str
    content: str = ""
    tool_calls: tuple[Json, ...] = ()
    """Calls in the shape of OpenAI's API; compared as canonical JSON."""
    tool_call_id: str | None = None
    name: str | None = None


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Segment:
    """A run of tokens from one source, hanging on the tokens it continues."""

    parent: int | None
    """Index of the segment that this one continues; None at a root. Always smaller than the segment's own index."""
    ids: Int32Array
    """Tokens as sent or sampled. Never re-tokenized from text."""
    source: Source
    logprobs: Float32Array | None = None
    """One per token of a sampled segment, after temperature, under the weights that sampled it."""
    versions: tuple[VersionRun, ...] = ()
    """Which weights sampled how many of the tokens, in order. Counts add up to the number of tokens."""
    arrays: NamedArrays = field(default_factory=dict)
    """Further per-token facts by name."""
    media: tuple[str, ...] = ()
    """Digests of images or sounds that stand behind placeholder tokens of this segment."""
    abandoned: str | None = None
    """Why nobody continued from here (`client_retry`, `unused_choice`, ...). Holds for all that hangs on it. None: kept."""


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """What an environment says about one step of an agent; rides on the mark of the assistant's message."""

    observation: Json = None
    """The bare observation that the agent acted on, without history: the anchor state."""
    action: Json = None
    """The parsed action: `{"type": "text" | "tool_call" | "terminate", ...}`."""
    info: Mapping[str, Json] = field(default_factory=dict)
    value_estimate: float | None = None
    done: bool = False


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Says that segments `start` to `stop` (a chain, each the parent of the next) spell one message."""

    message: Message
    start: int
    stop: int
    """First segment that is not part of the message."""
    reward: float | None = None
    """Reward of this turn alone, where the environment gives one."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    inference: InferenceMetadata | None = None
    """Only on messages that were sampled."""
    step: StepFacts | None = None
    timestamp: int | None = None
    """Milliseconds since 1970, by the recorder's clock."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """All that was sent to and sampled from models in one episode. Made by `penstock.trace.Recorder` only."""

    segments: tuple[Segment, ...]
    """Parents stand before their children."""
    marks: tuple[Mark, ...] = ()
    """Messages in the order they were recorded, those of abandoned branches included."""


def kept_segments(trace: Trace) -> list[bool]:
    """For each segment, whether neither it nor anything it hangs on was abandoned."""
    kept: list[bool] = []
    for segment in trace.segments:
        kept.append(segment.abandoned is None and (segment.parent is None or kept[segment.parent]))
    return kept
