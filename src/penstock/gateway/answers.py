"""What engines answer, read and looked at before it is kept or told.

Two dialects are read: ours, which names the version of every token, and vLLM's, which does not. Whatever cannot be read, or does not fit together, is a
failure of the engine (`InfraError`), never a reply.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any

import msgspec
import numpy as np

from penstock.errors import InfraError, InvalidError
from penstock.gateway.sampling import Order, Sampled
from penstock.types import Json, SamplerFacts, Usage, VersionRun
from penstock.wire import check_noun

# What could not be recorded is refused where it is read, before it is kept or told.
_TokenId = Annotated[int, msgspec.Meta(ge=0, le=int(np.iinfo(np.int32).max))]
_Logprob = Annotated[float, msgspec.Meta(ge=float(np.finfo(np.float32).min), le=0.0)]


class _Logprobs(msgspec.Struct):
    token_logprobs: list[_Logprob] | None = None
    top_logprobs: list[dict[str, float] | None] | None = None


class _Choice(msgspec.Struct):
    index: int
    text: str | None = None
    token_ids: list[_TokenId] | None = None
    prompt_token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None
    versions: list[VersionRun] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class _Cached(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    prompt_tokens_details: _Cached | None = None
    seconds: float | None = None


class Answer(msgspec.Struct):
    """An answer, or one event of a stream: the fields that are read of it."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    sampler: msgspec.Raw = msgspec.Raw()
    error: Any = None
    """A stream that fails half way says so in an event."""


_decoder = msgspec.json.Decoder(Answer)
_sampler_decoder = msgspec.json.Decoder(SamplerFacts)


def read_answer(body: bytes) -> Answer:
    """The answer that `body` spells. Raises `msgspec.DecodeError`."""
    return _decoder.decode(body)


def take(answer: Answer, replies: list[Sampled], order: Order) -> list[int]:
    """Add what an answer holds to the replies, and tell which have grown. Raises `InfraError` for what an answer to `order` cannot be."""
    grown = []
    for choice in answer.choices:
        if not 0 <= choice.index < len(replies):
            raise InfraError(f"the engine answered choice {choice.index} where {len(replies)} were asked for")
        _grow(replies[choice.index], choice, order)
        grown.append(choice.index)
    if answer.usage is not None:
        details, usage = answer.usage.prompt_tokens_details, answer.usage
        cached = (details.cached_tokens if details is not None else None) or 0
        found = Usage(prompt_tokens=usage.prompt_tokens or 0, cached_tokens=cached, seconds=float(usage.seconds or 0.0))
        for reply in replies:
            reply.usage = found
    sampler = bytes(answer.sampler)
    if sampler and sampler != b"null":
        facts = _sampler_facts(sampler)
        for reply in replies:
            reply.sampler = facts
    return grown


def _grow(reply: Sampled, choice: _Choice, order: Order) -> None:
    if choice.prompt_token_ids is not None and len(choice.prompt_token_ids) != len(order.ids):
        raise InfraError(f"the engine was sent {len(order.ids)} tokens and continued {len(choice.prompt_token_ids)}")
    if choice.token_ids is None and choice.text:
        raise InfraError("the engine does not tell the token ids that it samples (return_token_ids): use one that does")
    reply.ids += choice.token_ids or ()
    if choice.logprobs is not None:
        reply.logprobs += choice.logprobs.token_logprobs or ()
        reply.alternatives += [likeliest or {} for likeliest in choice.logprobs.top_logprobs or ()]
    reply.versions += choice.versions or ()
    reply.finish = choice.finish_reason or reply.finish
    reply.stop_text = choice.stop_reason if isinstance(choice.stop_reason, str) else reply.stop_text


def complete(reply: Sampled, order: Order, policy: str, asserted: int) -> None:
    """Fill in what the engine leaves out, and refuse what does not fit together."""
    num_tokens = len(reply.ids)
    if not reply.finish:
        raise InfraError("the engine's reply broke off")
    if num_tokens > order.max_tokens or (num_tokens == 0 and reply.finish != "abort"):
        raise InfraError(f"the engine answered {num_tokens} tokens where 1 to {order.max_tokens} were asked for")
    if len(reply.logprobs) != num_tokens:
        raise InfraError(f"the engine answered {num_tokens} tokens with {len(reply.logprobs)} logprobs")
    if not reply.versions and num_tokens:
        reply.versions = [VersionRun(policy=policy, version=asserted, count=num_tokens)]
        reply.sampler = _unnamed_facts(order)
    num_versioned = 0
    for run in reply.versions:
        _check_version(run)
        num_versioned += run.count
    if num_versioned != num_tokens:
        raise InfraError(f"the engine answered {num_tokens} tokens with versions of {num_versioned}")


@lru_cache(maxsize=64)
def _sampler_facts(spelled: bytes) -> SamplerFacts:
    """The facts that an answer spells. Most spell the same, and whoever records them looks at each object once."""
    facts = _sampler_decoder.decode(spelled)
    try:
        check_noun(facts)
    except InvalidError as error:
        raise InfraError(f"the engine's answer cannot be read: {error}") from None
    return facts


@lru_cache(maxsize=4096)
def _check_version(run: VersionRun) -> None:
    try:
        check_noun(run)
    except InvalidError as error:
        raise InfraError(f"the engine's answer cannot be read: {error}") from None


def _unnamed_facts(order: Order) -> SamplerFacts:
    """Of an engine that tells nothing about itself."""
    if order.filters:
        return SamplerFacts(temperature=order.temperature, filters=_numbers(order.filters), engine="openai")
    return _plain_facts(order.temperature)


@lru_cache(maxsize=64)
def _plain_facts(temperature: float) -> SamplerFacts:
    return SamplerFacts(temperature=temperature, engine="openai")


def _numbers(filters: Mapping[str, Json]) -> dict[str, float]:
    return {name: float(value) if isinstance(value, (int, float)) else 1.0 for name, value in filters.items()}
