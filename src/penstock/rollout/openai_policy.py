"""A policy that is any server with OpenAI's API: ours, vLLM, SGLang, or one that knows nothing of tokens.

Two ways, by whether the chat template of the model is known here:

- With `template` the conversation goes to `/v1/completions` as token ids, and calls of tools are read here. Every sampled token is recorded and trainable.
- Without it, it goes to `/v1/chat/completions` as messages. If the server tells the ids of prompt and reply (`return_token_ids`), they are recorded as they
  are and trainable too; if not, only the words are recorded, and nothing of it is ever trained on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

from penstock.chat import ChatTemplate, parse_tool_calls
from penstock.clock import Clock, SystemClock
from penstock.config import server_root
from penstock.errors import InfraError
from penstock.inference.client import Continuation, Reply
from penstock.rollout.asking import Asker
from penstock.rollout.engine_policy import EnginePolicy, whole_reply
from penstock.rollout.openai_shapes import ChatReply, Origin, message_shape, read_chat, read_completion
from penstock.rollout.policy import Action, Situation, action_from
from penstock.types import Json, Message


class OpenAIAgentPolicy:
    """Use it as an async context manager, from one event loop. Shared by all episodes of a worker."""

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        template: ChatTemplate | None = None,
        temperature: float = 1.0,
        wants_token_ids: bool = True,
        origin: Origin | None = None,
        extra_body: Mapping[str, Json] | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`base_url` with or without `/v1`. `wants_token_ids`: ask for ids and logprobs; turn it off for a server that refuses the question. `origin`: the name
        and version that replies are recorded under, where the server does not say. `extra_body`: further fields of every request."""
        self._clock = clock or SystemClock()
        self._asker = Asker(server_root("base_url", base_url), api_key=api_key, clock=self._clock)
        self._model, self._template, self._temperature = model, template, temperature
        self._wants_token_ids = wants_token_ids
        self._origin = origin or Origin()
        self._extra_body = dict(extra_body or {})

    async def __aenter__(self) -> Self:
        await self._asker.__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._asker.__aexit__(kind, error, trace)

    async def get_action(self, observation: Situation, available_tools_specs: Sequence[Json] | None = None) -> Action:
        """See `AgentPolicy`. Raises `InfraError` if there is no whole reply by the situation's deadline."""
        if self._template is not None:
            policy = EnginePolicy(sampler=self, template=self._template, temperature=self._temperature, clock=self._clock)
            return await policy.get_action(observation, available_tools_specs)
        return await self._chatted(observation, available_tools_specs)

    async def complete(self, wanted: Continuation, *, deadline_seconds: float | None = None) -> Reply:
        """Continue tokens: the server as a `Sampler`."""
        body: dict[str, Json] = {
            "model": self._model,
            "prompt": [int(id) for id in wanted.ids],
            "max_tokens": wanted.max_tokens,
            "temperature": wanted.temperature,
            "logprobs": 1,
            "return_token_ids": True,
        }
        body |= {"seed": wanted.seed} if wanted.seed is not None else {}
        body |= {"stop": list(wanted.stop)} if wanted.stop else {}
        body |= {"stop_token_ids": list(wanted.stop_ids)} if wanted.stop_ids else {}
        body |= {"request_id": wanted.request_id} if wanted.request_id is not None else {}
        return await self._asker.ask(
            "/v1/completions",
            body | self._extra_body,
            deadline_seconds=600.0 if deadline_seconds is None else deadline_seconds,
            read=lambda answer: read_completion(answer, self._origin),
        )

    async def _chatted(self, situation: Situation, tools: Sequence[Json] | None) -> Action:
        deadline = self._clock.monotonic() + situation.deadline_seconds
        body: dict[str, Json] = {
            "model": self._model,
            "messages": [message_shape(message) for message in situation.messages],
            "max_tokens": situation.max_tokens,
            "temperature": self._temperature,
            "seed": situation.seed,
        }
        body |= {"tools": list(tools)} if tools else {}
        body |= {"logprobs": True, "return_token_ids": True} if self._wants_token_ids else {}
        said = await self._asker.ask(
            "/v1/chat/completions", body | self._extra_body, deadline_seconds=situation.deadline_seconds, read=lambda answer: self._read(answer, situation)
        )
        if said.finish_reason == "abort":
            said = await self._continued(said, replace(situation, deadline_seconds=deadline - self._clock.monotonic()), bool(tools))
        truncated = said.finish_reason == "length"
        if said.prompt_ids is None:  # without them nobody knows what the reply's tokens continue
            return action_from(said.message, truncated=truncated)
        return action_from(said.message, reply=said.reply, truncated=truncated, prompt_ids=said.prompt_ids)

    def _read(self, answer: Json, situation: Situation) -> ChatReply:
        said = read_chat(answer, self._origin)
        if said.finish_reason == "abort" and (said.reply is None or said.prompt_ids is None):
            raise InfraError("the reply was aborted, and without token ids it cannot be continued")
        if said.reply is not None and len(said.reply.ids) > situation.max_tokens:
            raise InfraError(f"the server answered {len(said.reply.ids)} tokens where {situation.max_tokens} were asked for")
        return said

    async def _continued(self, said: ChatReply, situation: Situation, has_tools: bool) -> ChatReply:
        """The whole of a reply that was aborted, from its own tokens on."""
        assert said.reply is not None
        assert said.prompt_ids is not None
        begun = [said.reply] if len(said.reply.ids) else []
        situation = replace(situation, ids=said.prompt_ids)
        reply = await whole_reply(self, situation, temperature=self._temperature, stop_ids=(), clock=self._clock, begun=begun)
        parsed = parse_tool_calls(reply.text) if has_tools and not said.message.tool_calls else None
        calls, content = (said.message.tool_calls, reply.text) if parsed is None else (parsed.tool_calls, parsed.content)
        message = Message(role="assistant", content=content, tool_calls=calls)
        return replace(said, message=message, reply=reply, finish_reason=reply.metadata.finish_reason)
