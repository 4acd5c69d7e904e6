"""Calls of the completion routes, from a checked request to replies of the engine."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from penstock.chat import ChatTemplate
from penstock.errors import BadRequestError, InfraError, InputError
from penstock.inference.continuing import Origin, PartialReplies
from penstock.inference.engine.core import Engine
from penstock.inference.engine.requests import Choice, Finish, Request
from penstock.inference.engine.sampling import Sampling
from penstock.inference.loop import EngineLoop, Ticket
from penstock.inference.protocol import Call, ChatCall, CompletionCall
from penstock.inference.replies import (
    LAST_EVENT,
    Shape,
    TokenTexts,
    chat_choice,
    completion_choice,
    envelope,
    event,
    reply_text,
    sampler_shape,
    usage_shape,
)
from penstock.inference.streams import ChunkMaker
from penstock.types import Int32Array, SamplerFacts


def load_template(directory: Path) -> ChatTemplate | None:
    """The directory's template; the built-in `plain` one for a model that has none; None for a model without a tokenizer, which is served by ids."""
    if not (directory / "tokenizer.json").exists():
        return None
    config = directory / "tokenizer_config.json"
    has_own = (directory / "chat_template.jinja").exists() or (config.exists() and '"chat_template"' in config.read_text(encoding="utf-8"))
    return ChatTemplate.load(directory, template=None if has_own else "plain")


@dataclass(slots=True, eq=False)
class Conversation:
    """One call under way."""

    id: str
    call: Call
    model: str
    ticket: Ticket
    has_tools: bool
    is_chat: bool
    created: int
    started: float
    """By the monotonic clock."""
    origin: Origin | None = None
    """What a chat goes on from."""

    @property
    def prompt_tokens(self) -> int:
        """Of all prompts together."""
        return sum(len(request.prompt) for request in self.ticket.requests)

    @property
    def num_replies(self) -> int:
        """Choices over all prompts."""
        return len(self.ticket.requests) * self.call.num_choices

    def index(self, choice: Choice) -> int:
        """Place of a reply among the choices of the call."""
        position = next(place for place, request in enumerate(self.ticket.requests) if request is choice.request)
        return position * self.call.num_choices + choice.index


class Completions:
    """Answers calls with the engine behind `loop`."""

    def __init__(self, loop: EngineLoop, template: ChatTemplate | None, *, model_name: str) -> None:
        engine = loop.engine
        self._loop = loop
        self._template = template
        self._model_name = model_name
        self._partial_replies = PartialReplies()
        self._texts = TokenTexts(template.decode if template is not None else lambda _: "")
        self._facts = SamplerFacts(
            template_digest=template.digest if template is not None else "",
            tokenizer_digest=template.tokenizer_digest if template is not None else "",
            engine="penstock",
            dtype="float32",
        )
        self._eos_ids = frozenset(engine.served.weights.architecture.eos_ids) | frozenset(template.eos_ids if template is not None else ())

    def begin_completion(self, asked: CompletionCall) -> Conversation:
        """Submit the prompts of a completion."""
        return self._begin(asked.call, [self._encoded(prompt) for prompt in asked.prompts], is_chat=False)

    def begin_chat(self, asked: ChatCall) -> Conversation:
        """Render a chat and submit it."""
        if self._template is None:
            raise BadRequestError("this model has no tokenizer: send token ids to /v1/completions", "messages")
        origin = self._origin(asked, self._template)
        return self._begin(asked.call, [origin.opened], is_chat=True, has_tools=bool(asked.tools), origin=origin)

    def _origin(self, asked: ChatCall, template: ChatTemplate) -> Origin:
        """What the engine goes on from: for a reply that was aborted here, the tokens it had; otherwise what the messages say."""
        tools = asked.tools or None
        rendered = template.open(asked.messages, tools, continue_final_message=asked.continue_final_message).ids
        whole = Origin(prompt=rendered, text="", ids=rendered[:0])
        if not asked.continue_final_message:
            return whole
        *earlier, last = asked.messages
        try:
            prompt = template.open(earlier, tools).ids
        except InputError:
            # Not every beginning of a conversation is one that a template takes: then no reply can have been sampled after it.
            return whole
        ids = self._partial_replies.find(prompt, last.content)
        if ids is None and np.array_equal(rendered[: len(prompt)], prompt):
            ids = rendered[len(prompt) :]
        return whole if ids is None else Origin(prompt=prompt, text=last.content, ids=ids)

    def end(self, conversation: Conversation) -> None:
        """Nobody waits any more: what is still being computed is not."""
        self._loop.cancel(conversation.ticket)

    async def whole(self, conversation: Conversation) -> Shape:
        """The reply, once all of it is there."""
        choices: dict[int, Choice] = {}
        while len(choices) < conversation.num_replies:
            choice = self._ended(conversation, await conversation.ticket.next())
            choices[conversation.index(choice)] = choice
        call, ordered = conversation.call, sorted(choices.items())
        if conversation.is_chat:
            kind = "chat.completion"
            shapes = [chat_choice(choice, index, call, self._texts, has_tools=conversation.has_tools, id=conversation.id) for index, choice in ordered]
        else:
            kind = "text_completion"
            shapes = [completion_choice(choice, index, call, self._texts) for index, choice in ordered]
        shape = envelope(kind, conversation.id, conversation.model, conversation.created, shapes)
        if call.return_token_ids:
            self._add_prompt_ids(conversation, shape)
        shape["usage"] = self._usage(conversation, list(choices.values()))
        return shape | {"sampler": sampler_shape(call, self._facts)}

    async def events(self, conversation: Conversation) -> AsyncIterator[bytes]:
        """The reply as server-sent events."""
        call = conversation.call
        maker = ChunkMaker(call, self._texts, conversation.id, conversation.is_chat, conversation.has_tools)
        kind = "chat.completion.chunk" if conversation.is_chat else "text_completion"
        ended: dict[int, Choice] = {}
        is_first = True
        while len(ended) < conversation.num_replies:
            choice = self._ended(conversation, await conversation.ticket.next())
            index = conversation.index(choice)
            chunk = maker.chunk(choice, index)
            if chunk is None:
                continue
            shape = envelope(kind, conversation.id, conversation.model, conversation.created, [chunk])
            if is_first and call.return_token_ids:
                self._add_prompt_ids(conversation, shape)
            is_first = False
            if chunk["finish_reason"] is not None:
                ended[index] = choice
                shape["sampler"] = sampler_shape(call, self._facts)
            yield event(shape)
        if call.include_usage:
            last = envelope(kind, conversation.id, conversation.model, conversation.created, [])
            yield event(last | {"usage": self._usage(conversation, list(ended.values()))})
        yield LAST_EVENT

    def _ended(self, conversation: Conversation, choice: Choice) -> Choice:
        """`choice`, if it is sound; remembered, if it is a reply of a chat that may be continued."""
        if choice.finish is Finish.ERROR:
            raise InfraError("the model gave no number where a probability should be: its weights are broken")
        if choice.finish is Finish.ABORT and conversation.origin is not None:
            self._partial_replies.keep(conversation.origin.grown(reply_text(choice, self._texts.decode), np.array(choice.ids, np.int32)))
        return choice

    def _begin(self, call: Call, prompts: Sequence[Int32Array], *, is_chat: bool, has_tools: bool = False, origin: Origin | None = None) -> Conversation:
        id = call.request_id or f"{'chatcmpl' if is_chat else 'cmpl'}-{secrets.token_hex(12)}"
        seed = secrets.randbits(63) if call.seed is None else call.seed
        ticket = self._loop.submit([self._request(call, id, prompt, seed) for prompt in prompts], is_streamed=call.stream)
        return Conversation(id, call, call.model or self._model_name, ticket, has_tools, is_chat, int(time.time()), time.monotonic(), origin)

    def _request(self, call: Call, id: str, prompt: Int32Array, seed: int) -> Request:
        engine: Engine = self._loop.engine
        # A reply ends where the context does, however much was asked for; without a wish it also leaves room for its siblings.
        room = engine.context_tokens - len(prompt)
        wish = call.max_tokens if call.max_tokens is not None else engine.limits.kv_tokens // call.num_choices - len(prompt)
        return Request(
            id=id,
            prompt=prompt,
            max_tokens=max(1, min(room, wish)),
            num_choices=call.num_choices,
            sampling=Sampling(
                temperature=call.temperature,
                top_p=call.top_p,
                top_k=call.top_k,
                num_alternatives=call.num_alternatives,
                seed=seed,
            ),
            stop_ids=frozenset(call.stop_ids) | (frozenset() if call.ignore_eos else self._eos_ids),
            stop_texts=call.stop_texts,
        )

    def _encoded(self, prompt: str | Int32Array) -> Int32Array:
        if not isinstance(prompt, str):
            return prompt
        if self._template is None:
            raise BadRequestError("this model has no tokenizer: send token ids", "prompt")
        # A bare prompt is the client's own rendering, so control tokens in it are what they spell.
        return np.asarray(self._template.encode_text(prompt, control_tokens=True), np.int32)

    def _add_prompt_ids(self, conversation: Conversation, shape: Shape) -> None:
        """Where others put them: on the reply of a chat, on each choice of a completion."""
        if conversation.is_chat:
            shape["prompt_token_ids"] = conversation.ticket.requests[0].prompt.tolist()
            return
        for choice in shape["choices"]:
            choice["prompt_token_ids"] = conversation.ticket.requests[choice["index"] // conversation.call.num_choices].prompt.tolist()

    def _usage(self, conversation: Conversation, choices: Sequence[Choice]) -> Shape:
        return usage_shape(conversation.prompt_tokens, choices, time.monotonic() - conversation.started)
