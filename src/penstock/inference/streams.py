"""Replies as server-sent events, chunk by chunk, and what happens when nobody listens any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from penstock.inference.engine.requests import Choice, Finish
from penstock.inference.engine.sampling import Drawn
from penstock.inference.engine.stops import TextStream
from penstock.inference.protocol import Call
from penstock.inference.replies import Shape, TokenTexts, chat_logprobs, chat_message, completion_logprobs, token_facts


async def until_gone(receive: Receive) -> None:
    """Returns when the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(request: HttpRequest, work: Coroutine[Any, Any, Shape]) -> Shape | None:
    """The result of `work`, or None, with `work` cancelled, once the client has gone."""
    gone, working = asyncio.create_task(until_gone(request.receive)), asyncio.create_task(work)
    try:
        await asyncio.wait({gone, working}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        await _cancelled(gone, working)


class EventStream(Response):
    """Sends events as they come. `on_end` is called once in the end, however it came."""

    def __init__(self, events: AsyncIterator[bytes], on_end: Callable[[], None]) -> None:
        super().__init__(media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        del self.headers["content-length"]
        self._events = events
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Write until the events end or the client goes."""
        gone, writing = asyncio.create_task(until_gone(receive)), asyncio.create_task(self._write(send))
        try:
            await asyncio.wait({gone, writing}, return_when=asyncio.FIRST_COMPLETED)
            if writing.done():
                writing.result()
        finally:
            self._on_end()
            await _cancelled(gone, writing)

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for event in self._events:
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def _cancelled(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(slots=True)
class _Progress:
    """How much of a growing reply has been sent."""

    text: TextStream
    num_sent: int = 0
    num_characters: int = 0
    is_done: bool = False

    def advance(self, choice: Choice) -> tuple[list[Drawn], str, Finish | None] | None:
        """New tokens, their text, and why the reply ended, if it did; None if there is nothing new."""
        # The reason is read first: once it is there, no token can come after those that are read next.
        finish = choice.finish
        tokens = choice.drawn[self.num_sent :]
        if self.is_done or (not tokens and finish is None):
            return None
        self.num_sent += len(tokens)
        shown = [token.id for token in tokens]
        if finish is None:
            return tokens, self.text.push(shown), None
        self.is_done = True
        if finish is Finish.STOP and choice.stop_text is None:
            shown.pop()
        return tokens, self.text.close(shown, choice.stop_text), finish


@dataclass(slots=True)
class ChunkMaker:
    """Turns growing replies of one call into the choices of its chunks."""

    call: Call
    texts: TokenTexts
    id: str
    is_chat: bool
    has_tools: bool = False
    """Then text is held back until a reply has ended: it may turn out to be a call."""
    _progress: dict[int, _Progress] = field(default_factory=dict)

    def chunk(self, choice: Choice, index: int) -> Shape | None:
        """The next chunk of a reply; None if there is nothing new to say."""
        is_first = index not in self._progress
        progress = self._progress.setdefault(index, _Progress(TextStream(self.texts.decode, self.call.stop_texts)))
        news = progress.advance(choice)
        if news is None:
            return None
        tokens, text, finish = news
        shape = self._chat(choice, index, tokens, text, finish) if self.is_chat else self._plain(index, tokens, text, progress.num_characters)
        if self.is_chat and is_first:
            shape["delta"] = {"role": "assistant"} | shape["delta"]
        progress.num_characters += sum(len(self.texts[token.id]) for token in tokens) if self.call.wants_logprobs else 0
        shape.setdefault("finish_reason", finish)
        if self.call.return_token_ids:
            shape["token_ids"] = [token.id for token in tokens]
        if self.call.raw_logprobs:
            shape["raw_logprobs"] = [token.raw_logprob for token in tokens]
        if finish is not None:
            facts = token_facts(choice, self.call)
            shape |= {name: facts[name] for name in ("versions", "stop_reason") if name in facts}
        return shape

    def _plain(self, index: int, tokens: list[Drawn], text: str, offset: int) -> Shape:
        logprobs = completion_logprobs(tokens, self.texts, offset=offset) if self.call.wants_logprobs else None
        return {"index": index, "text": text, "logprobs": logprobs}

    def _chat(self, choice: Choice, index: int, tokens: list[Drawn], text: str, finish: Finish | None) -> Shape:
        logprobs = {"content": chat_logprobs(tokens, self.texts)} if self.call.wants_logprobs else None
        shape: Shape = {"index": index, "delta": {"content": text}, "logprobs": logprobs}
        if self.has_tools and finish is None:
            shape["delta"] = {}
        elif self.has_tools:
            message, shape["finish_reason"] = chat_message(choice, self.texts, has_tools=True, id=self.id)
            calls = [call | {"index": number} for number, call in enumerate(message.pop("tool_calls", []))]
            shape["delta"] = message | ({"tool_calls": calls} if calls else {})
        return shape
