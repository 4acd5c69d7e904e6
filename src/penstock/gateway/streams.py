"""Replies as server-sent events. Text is told as it is sampled; that a reply has ended is told only once it is recorded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from penstock.errors import PenstockError
from penstock.gateway.failures import TOLD, error_fields, openai_error
from penstock.gateway.replies import Answer, Shape, TextStream, event, logprobs_shape, new_id, part_event
from penstock.gateway.requests import Ask
from penstock.gateway.sampling import Sampled
from penstock.gateway.session import ClientGone, Session
from penstock.gateway.watching import watched


class TokenTexts:
    """Texts of tokens, remembered, and how a reply is decoded."""

    def __init__(self, decode: Callable[[Sequence[int]], str], end_ids: frozenset[int]) -> None:
        self.decode, self.end_ids = decode, end_ids
        self._texts: dict[int, str] = {}

    def __call__(self, id: int) -> str:
        """Text of one token."""
        text = self._texts.get(id)
        if text is None:
            text = self._texts[id] = self.decode([id])
        return text


class ChatStream(Response):
    """Sends a reply while it grows. An error before the first chunk is an ordinary error; after it, an event."""

    def __init__(self, session: Session, ask: Ask, texts: TokenTexts) -> None:
        super().__init__(media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        del self.headers["content-length"]
        self._session, self._ask, self._texts = session, ask, texts
        self._id, self._created = new_id(), int(time.time())
        self._streams: dict[int, TextStream] = {}
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        """Events to be sent; None when the work is done, however it ended."""
        self._is_started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sample and write, until the reply ends or the client goes."""
        async with watched(receive) as gone:
            work = asyncio.create_task(self._session.complete(self._ask, id=self._id, gone=gone, on_tokens=self._grown))
            work.add_done_callback(lambda _: self._queue.put_nowait(None))
            try:
                while (ready := await self._queue.get()) is not None:
                    await self._send(send, ready)
                answer = await work
            except ClientGone:
                return
            except TOLD as error:
                await self._fail(error, scope, receive, send)
                return
            finally:
                gone_before = gone.is_set()
                if not work.done():
                    gone.set()
                    await asyncio.gather(work, return_exceptions=True)
            for last in self._rest(answer):
                await self._send(send, last)
            await send({"type": "http.response.body", "body": b""})
            if not gone_before:
                self._session.delivered(self._ask)

    def _grown(self, index: int, reply: Sampled) -> None:
        """Put what may be told of a reply into the queue. Calls are read out of a whole reply, so with tools nothing is told before its end."""
        if self._ask.calls_tools:
            return
        stream = self._streams.get(index)
        if stream is None:
            stream = self._streams[index] = TextStream(decode=self._texts.decode, stops=self._ask.stop, end_ids=self._texts.end_ids)
        text = stream.push(reply.ids)
        if not text:
            return
        delta: Shape = {"content": text} if stream.is_begun else {"role": "assistant", "content": text}
        stream.is_begun = True
        self._queue.put_nowait(part_event(self._id, self._ask.model, self._created, index, delta, self._logprobs(stream, reply)))

    def _logprobs(self, stream: TextStream, reply: Sampled) -> Shape | None:
        if not self._ask.wants_logprobs:
            return None
        start, stream.num_told = stream.num_told, len(reply.ids)
        return {"content": logprobs_shape(reply.ids[start:], reply.logprobs[start:], reply.alternatives[start:], self._texts)}

    def _rest(self, answer: Answer) -> list[bytes]:
        """An answer that was given before is told whole."""
        return answer.last_events(self._ask, self._streams if answer.id == self._id else {}, self._texts)

    async def _send(self, send: Send, body: bytes) -> None:
        if not self._is_started:
            self._is_started = True
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": body, "more_body": True})

    async def _fail(self, error: PenstockError, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = scope["state"]["request_id"]
        if not self._is_started:
            await openai_error(error, request_id)(scope, receive, send)
            return
        await self._send(send, event({"error": error_fields(error, request_id)}))
        await send({"type": "http.response.body", "body": b""})
