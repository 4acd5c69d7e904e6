"""A server with OpenAI's chat and completion routes that answers what it is told to, and fails when it is told to: real HTTP, no model."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from tests.unit.rollout.stub_server import serving

from penstock.chat import ChatTemplate, parse_tool_calls
from penstock.types import Message


@dataclass
class StubChat:
    """Says `say(messages)` to a chat; continues it to a prompt of ids. Logprobs follow from the place."""

    template: ChatTemplate
    say: Callable[[list[dict[str, Any]]], str]
    tells_ids: bool = True
    """Whether it gives token ids, as vLLM does."""
    faults: deque[str] = field(default_factory=deque)
    """Taken from the left, one for each request; empty: all is well."""
    always: str = ""
    requests: list[tuple[str, dict[str, Any], dict[str, str]]] = field(default_factory=list)
    """Path, body, headers."""
    url: str = ""
    _rest: list[int] = field(default_factory=list)
    """What an aborted reply would have gone on with."""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[StubChat]:
        async with serving({"/v1/chat/completions": self._chat, "/v1/completions": self._complete}) as self.url:
            yield self

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        fault, failed = await self._failed(request, body)
        if failed is not None:
            return failed
        tools = body.get("tools")
        messages = [Message(role=one["role"], content=one["content"], tool_calls=tuple(one.get("tool_calls") or ())) for one in body["messages"]]
        ids, finish = self._cut([*self.template.encode_text(self.say(body["messages"]), control_tokens=True).tolist(), self.template.eos_ids[0]], body, fault)
        text = self.template.split_reply(ids).text
        parsed = parse_tool_calls(text) if tools else None
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if parsed is not None and parsed.tool_calls:
            message = {"role": "assistant", "content": None, "tool_calls": list(parsed.tool_calls)}
            finish = "tool_calls" if finish == "stop" else finish
        choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
        answer: dict[str, Any] = {"choices": [choice], "usage": {"prompt_tokens": 5, "completion_tokens": len(ids)}}
        if self.tells_ids and body.get("return_token_ids"):
            choice["token_ids"] = ids
            choice["logprobs"] = {"content": [{"token": "?", "logprob": -(place + 1) / 8} for place in range(len(ids))]}
            answer["prompt_token_ids"] = self.template.open(messages, tools).ids.tolist()
        return web.json_response(answer)

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        fault, failed = await self._failed(request, body)
        if failed is not None:
            return failed
        ids, finish = self._cut(self._rest, body, fault)
        choice: dict[str, Any] = {"index": 0, "text": self.template.split_reply(ids).text, "finish_reason": finish}
        if self.tells_ids:
            choice |= {"token_ids": ids, "logprobs": {"token_logprobs": [-0.5] * len(ids)}}
        return web.json_response({"choices": [choice]})

    def _cut(self, ids: list[int], body: dict[str, Any], fault: str) -> tuple[list[int], str]:
        if fault == "abort":
            self._rest = ids[2:]
            return ids[:2], "abort"
        return (ids, "stop") if len(ids) <= body["max_tokens"] else (ids[: body["max_tokens"]], "length")

    async def _failed(self, request: web.Request, body: dict[str, Any]) -> tuple[str, web.StreamResponse | None]:
        self.requests.append((request.path, body, dict(request.headers)))
        fault = self.faults.popleft() if self.faults else self.always
        if fault == "hang":
            await asyncio.Event().wait()
        if fault == "die":
            response = web.StreamResponse(headers={"Content-Length": "1000"})
            await response.prepare(request)
            await response.write(b'{"choices": [')
            assert request.transport is not None
            request.transport.abort()
            return fault, response
        answers: dict[str, Callable[[], web.Response]] = {
            "429": lambda: web.json_response({"error": {"message": "slow down"}}, status=429, headers={"Retry-After": "3"}),
            "500": lambda: web.Response(status=500, text="<html>oops</html>"),
            "garbage": lambda: web.Response(body=b"\x00 not json", content_type="application/json"),
            "empty": lambda: web.json_response({"choices": []}),
            "strange": lambda: web.json_response({"choices": [{"message": {"content": "x", "tool_calls": [{"function": {}}]}}]}),
            "refuse": lambda: web.json_response({"error": {"message": "no such model"}}, status=404),
        }
        return fault, answers[fault]() if fault in answers else None
