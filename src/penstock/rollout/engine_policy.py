"""A policy that is a language model: continues the situation's tokens on an inference server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from penstock.chat import ChatTemplate, parse_tool_calls
from penstock.clock import Clock, SystemClock
from penstock.errors import InfraError
from penstock.inference.client import Continuation, Reply, Sampler
from penstock.rollout.policy import Action, Situation, action_from
from penstock.rollout.seeds import derived_seed
from penstock.types import Json, Message, Usage

_PAUSE_SECONDS = 0.1
"""After an abort that gave nothing at all: whoever aborted is busy."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EnginePolicy:
    """Samples replies token by token. Every id, logprob and version is the engine's own."""

    sampler: Sampler
    template: ChatTemplate
    temperature: float = 1.0
    clock: Clock = field(default_factory=SystemClock)

    async def get_action(self, observation: Situation, available_tools_specs: Sequence[Json] | None = None) -> Action:
        """See `AgentPolicy`."""
        reply = await whole_reply(self.sampler, observation, temperature=self.temperature, stop_ids=self.template.eos_ids, clock=self.clock)
        text = self.template.split_reply(reply.ids).text
        truncated = reply.metadata.finish_reason == "length"
        parsed = parse_tool_calls(text) if available_tools_specs else None
        if parsed is not None and parsed.tool_calls:
            message = Message(role="assistant", content=parsed.content, tool_calls=parsed.tool_calls)
            return action_from(message, reply=reply, truncated=truncated)
        return Action(message=Message(role="assistant", content=text), reply=reply, truncated=truncated)


async def whole_reply(
    sampler: Sampler, situation: Situation, *, temperature: float, stop_ids: Sequence[int], clock: Clock, begun: Sequence[Reply] = ()
) -> Reply:
    """One whole reply. What an engine gave up half way (to load weights, or to stop) is continued by the next one, from the same tokens.

    `begun`: parts that are there already, tokens after those of the situation. Raises `InfraError` if it is not finished by the deadline.
    """
    deadline = clock.monotonic() + situation.deadline_seconds
    parts = list(begun)
    ids = np.concatenate([situation.ids, *(part.ids for part in parts)]) if parts else situation.ids
    left = situation.max_tokens - sum(len(part.ids) for part in parts)
    while left > 0:
        wanted = Continuation(
            ids=ids,
            max_tokens=left,
            temperature=temperature,
            seed=derived_seed(situation.seed, "part", len(parts)),
            stop_ids=stop_ids,
            affinity=situation.episode or None,
        )
        part = await sampler.complete(wanted, deadline_seconds=deadline - clock.monotonic())
        _check(part, left)
        if len(part.ids):
            parts.append(part)
        if part.metadata.finish_reason != "abort":
            return _joined(parts)
        ids, left = np.concatenate([ids, part.ids]), left - len(part.ids)
        if clock.monotonic() + _PAUSE_SECONDS >= deadline:
            raise InfraError(f"the reply was aborted {len(parts)} times and not finished within {situation.deadline_seconds:g} s")
        if not len(part.ids):
            await clock.sleep(_PAUSE_SECONDS)
    return _cut_off(_joined(parts))


def _check(part: Reply, most: int) -> None:
    """What an engine says must fit together; the trace checks the rest."""
    if len(part.ids) > most or (len(part.ids) == 0 and part.metadata.finish_reason != "abort"):
        raise InfraError(f"the engine answered {len(part.ids)} tokens where 1 to {most} were asked for")


def _joined(parts: Sequence[Reply]) -> Reply:
    if len(parts) == 1:
        return parts[0]
    usages = [part.metadata.usage for part in parts]
    usage = Usage(
        prompt_tokens=usages[0].prompt_tokens,
        cached_tokens=usages[0].cached_tokens,
        sampled_tokens=sum(usage.sampled_tokens for usage in usages),
        seconds=sum(usage.seconds for usage in usages),
    )
    return Reply(
        ids=np.concatenate([part.ids for part in parts]),
        logprobs=np.concatenate([part.logprobs for part in parts]),
        versions=tuple(run for part in parts for run in part.versions),
        text="".join(part.text for part in parts),
        metadata=replace(parts[-1].metadata, usage=usage),
    )


def _cut_off(reply: Reply) -> Reply:
    return replace(reply, metadata=replace(reply.metadata, finish_reason="length"))
