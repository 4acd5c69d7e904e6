"""An inference server that answers what it is told to, and fails when it is told to: real HTTP, no model."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from tests.unit.rollout.stub_server import serving

from penstock.chat import EOS_ID


def text_of(ids: list[int]) -> str:
    """What byte tokens spell; special ones are left out."""
    return bytes(id for id in ids if id < 256).decode("utf-8", "replace")


@dataclass
class StubEngine:
    """Replies with the bytes of `say(text of the prompt)` and the end token; cut off at max_tokens. Logprobs and versions follow from the place."""

    say: Callable[[str], str]
    end_id: int = EOS_ID
    version: int = 0
    changes: bool = True
    """The weights change after the first token of every reply."""
    faults: deque[str] = field(default_factory=deque)
    """Taken from the left, one for each request; empty: all is well."""
    always: str = ""
    """A fault of every request."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    replies: list[dict[str, Any]] = field(default_factory=list)
    """Choices as they were sent."""
    url: str = ""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[StubEngine]:
        async with serving({"/v1/completions": self._complete}) as self.url:
            yield self

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        fault = self.faults.popleft() if self.faults else self.always
        if fault == "hang":
            await asyncio.Event().wait()
        if fault == "429":
            return web.json_response({"error": {"code": "limit", "message": "full"}}, status=429, headers={"Retry-After": "0"})
        if fault == "refuse":
            return web.json_response({"error": {"code": "invalid", "message": "the prompt is too long"}}, status=400)
        if fault == "garbage":
            return web.Response(body=b"\x00 not json", content_type="application/json")
        answer = self._answer(body, fault)
        if fault == "die":
            return await self._die(request)
        self.replies.append(answer["choices"][0])
        return web.json_response(answer)

    def _answer(self, body: dict[str, Any], fault: str) -> dict[str, Any]:
        prompt = body["prompt"]
        ids = [*self.say(text_of(prompt)).encode(), self.end_id]
        finish = "stop" if len(ids) <= body["max_tokens"] else "length"
        ids = ids[: body["max_tokens"]]
        if fault == "abort":
            ids, finish = ids[:1], "abort"
        if fault == "abort_empty":
            ids, finish = [], "abort"
        logprobs = [-(place + 1) / 8 for place in range(len(ids))]
        if fault == "positive":
            logprobs[0] = 0.5
        if fault == "short":
            logprobs = logprobs[:-1]
        counts = [(self.version, min(1, len(ids))), (self.version + 1, len(ids) - 1)] if self.changes else [(self.version, len(ids))]
        versions = [{"policy": "policy", "version": version, "count": count, "mixed_kv": False, "evidence": "digest"} for version, count in counts if count > 0]
        choice = {
            "index": 0,
            "text": text_of(ids),
            "finish_reason": finish,
            "token_ids": ids,
            "logprobs": {"token_logprobs": logprobs},
            "versions": versions,
        }
        usage = {"prompt_tokens": len(prompt), "prompt_tokens_details": {"cached_tokens": 0}, "completion_tokens": len(ids), "seconds": 0.25}
        return {"choices": [choice], "usage": usage, "sampler": {"temperature": body["temperature"], "engine": "stub"}}

    async def _die(self, request: web.Request) -> web.StreamResponse:
        """Send half a reply and drop the connection."""
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b'{"choices": [')
        assert request.transport is not None
        request.transport.abort()
        return response
