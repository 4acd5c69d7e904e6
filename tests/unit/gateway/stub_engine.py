"""An inference server in a thread that says what it is told to: real HTTP, no model. It names versions, as our servers do."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from aiohttp import web

IM_END = 260


def text_of(ids: list[int]) -> str:
    """What byte tokens spell, with tags spelled out; other control tokens are left out."""
    tags = {261: "<think>", 262: "</think>", 263: "<tool_call>", 264: "</tool_call>"}
    out, run = "", b""
    for id in [*ids, -1]:
        if 0 <= id < 256:
            run += bytes([id])
            continue
        out, run = out + run.decode("utf-8", "replace") + tags.get(id, ""), b""
    return out


def ids_of(text: str) -> list[int]:
    """Byte tokens of a text, its tags as the tokens they are."""
    ids: list[int] = []
    tags = {"<think>": 261, "</think>": 262, "<tool_call>": 263, "</tool_call>": 264}
    while text:
        tag = next((tag for tag in tags if text.startswith(tag)), None)
        ids += [tags[tag]] if tag else list(text[0].encode())
        text = text[len(tag) if tag else 1 :]
    return ids


class StubEngine:
    """`say(text of the prompt, number of the choice)` is what it replies, with the end token. Logprobs follow from the place."""

    def __init__(self, say: Callable[[str, int], str], *, end_id: int = IM_END) -> None:
        self.say, self.end_id = say, end_id
        self.version = 0
        self.faults: deque[str] = deque()
        self.requests: list[dict[str, Any]] = []
        self.choices: list[dict[str, Any]] = []
        """As they were sent."""
        self.aborted: list[str] = []
        self.on_request: Callable[[], None] = lambda: None
        self._held: dict[str, asyncio.Event] = {}
        self._loop = asyncio.new_event_loop()
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), daemon=True)
        self._thread.start()
        assert started.wait(10)

    def _run(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._start())
        started.set()
        self._loop.run_forever()

    async def _start(self) -> None:
        app = web.Application()
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/abort", self._abort)
        runner = self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"

    def forget(self) -> None:
        """What was asked, said and still to go wrong."""
        self.requests.clear()
        self.choices.clear()
        self.faults.clear()

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "stub", "object": "model"}]})

    async def _abort(self, request: web.Request) -> web.Response:
        ids = (await request.json())["ids"]
        self.aborted += ids
        for id in ids:
            self._held.setdefault(id, asyncio.Event()).set()
        return web.json_response({"aborted": len(ids)})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        self.on_request()
        fault = self.faults.popleft() if self.faults else ""
        if fault == "429":
            return web.json_response({"error": {"code": "limit", "message": "full"}}, status=429, headers={"Retry-After": "0"})
        if fault == "refuse":
            return web.json_response({"error": {"code": "invalid", "message": "the prompt is too long"}}, status=400)
        if fault == "garbage":
            return web.Response(body=b"\x00 not json", content_type="application/json")
        if fault == "die":
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        choices = [self._choice(body, index, fault) for index in range(body["n"])]
        if body.get("stream"):
            return await self._stream(request, body, choices, fault)
        if fault == "hold":
            event = self._held.setdefault(body["request_id"], asyncio.Event())
            await event.wait()
            choices = [self._cut(choice, 2) for choice in choices]
        self.choices += choices
        return web.json_response(self._answer(body, choices))

    def _answer(self, body: dict[str, Any], choices: list[dict[str, Any]]) -> dict[str, Any]:
        usage: dict[str, Any] = {"prompt_tokens": len(body["prompt"]), "completion_tokens": sum(len(choice["token_ids"]) for choice in choices)}
        usage |= {"prompt_tokens_details": {"cached_tokens": 1}, "seconds": 0.25}
        return {"choices": choices, "usage": usage, "sampler": {"temperature": body["temperature"], "engine": "stub"}}

    def _choice(self, body: dict[str, Any], index: int, fault: str) -> dict[str, Any]:
        ids = [*ids_of(self.say(text_of(body["prompt"]), index)), self.end_id]
        finish = "stop"
        if len(ids) > body["max_tokens"]:
            ids, finish = ids[: body["max_tokens"]], "length"
        stop_reason = None
        for stop in body.get("stop", ()):
            place = text_of(ids).find(stop)
            if place >= 0:
                ids, stop_reason = ids_of(text_of(ids)[: place + len(stop)]), stop
        if fault == "abort":
            ids, finish = ids[:1], "abort"
        return self._shaped(ids, finish, index, stop_reason)

    def _shaped(self, ids: list[int], finish: str, index: int, stop_reason: str | None = None) -> dict[str, Any]:
        logprobs = [-(place + 1) / 8 for place in range(len(ids))]
        top = [{text_of([id]): logprob} for id, logprob in zip(ids, logprobs, strict=True)]
        choice: dict[str, Any] = {
            "index": index,
            "text": text_of(ids),
            "finish_reason": finish,
            "token_ids": ids,
            "logprobs": {"token_logprobs": logprobs, "top_logprobs": top},
        }
        if stop_reason is not None:
            choice["stop_reason"] = stop_reason
        choice["versions"] = [{"policy": "policy", "version": self.version, "count": len(ids), "mixed_kv": False, "evidence": "digest"}] if ids else []
        return choice

    def _cut(self, choice: dict[str, Any], num_tokens: int) -> dict[str, Any]:
        return self._shaped(choice["token_ids"][:num_tokens], "abort", choice["index"])

    async def _stream(self, request: web.Request, body: dict[str, Any], choices: list[dict[str, Any]], fault: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for choice in choices:
            ids, logprobs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
            for place, id in enumerate(ids):
                if fault == "hold" and place == 2:
                    await self._held.setdefault(body["request_id"], asyncio.Event()).wait()
                    choice = self._cut(choice, 2)
                    break
                if fault == "break" and place == 2:
                    assert request.transport is not None
                    request.transport.abort()
                    return response
                part = {"index": choice["index"], "text": text_of([id]), "token_ids": [id], "finish_reason": None}
                part["logprobs"] = {"token_logprobs": [logprobs[place]], "top_logprobs": [{text_of([id]): logprobs[place]}]}
                await self._event(response, {"choices": [part]})
            last = {name: choice[name] for name in ("index", "finish_reason", "versions", "stop_reason") if name in choice} | {"text": "", "token_ids": []}
            answer = self._answer(body, [choice])
            await self._event(response, {"choices": [last]} | ({"sampler": answer["sampler"]} if "sampler" in answer else {}))
            self.choices.append(choice)
        await self._event(response, {"choices": [], "usage": self._answer(body, choices)["usage"]})
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _event(self, response: web.StreamResponse, shape: dict[str, Any]) -> None:
        await response.write(b"data: " + json.dumps(shape).encode() + b"\n\n")
