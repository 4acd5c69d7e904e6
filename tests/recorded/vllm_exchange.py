"""What a gateway and a vLLM server say to each other: a conversation that can be recorded with a real server and played again without one."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import openai
from aiohttp import web

RECORDING = Path(__file__).parents[1] / "data" / "vllm" / "exchange.json"
UNFIXED = ("request_id", "seed")
"""Fields of a request that are another each time."""


@dataclass
class Played:
    """What became of the conversation, as its clients saw it."""

    told: list[list[str]] = field(default_factory=list)
    """Texts of each answer, one for each choice."""
    finished: list[str] = field(default_factory=list)
    refused: str = ""
    alternatives: int = 0


def play(base_url: str, bent_url: str) -> Played:
    """Ask for everything that the gateway asks of an engine. `bent_url` is of a session that takes filters."""
    played = Played()
    messages: list[Any] = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "one"}]

    def note(reply: Any) -> None:
        played.told.append([choice.message.content for choice in reply.choices])
        played.finished.append(reply.choices[-1].finish_reason)

    def asked(client: openai.OpenAI, **options: Any) -> Any:
        reply = client.chat.completions.create(model="policy", messages=messages, **options)
        if not options.get("stream"):
            note(reply)
        return reply

    with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        chosen = asked(client, n=2, max_tokens=6).choices[1].message
        messages += [{"role": "assistant", "content": chosen.content}, {"role": "user", "content": "two"}]
        chunks = list(asked(client, max_tokens=6, stream=True, stream_options={"include_usage": True}))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        played.told.append([text])
        played.finished.append(next(chunk.choices[0].finish_reason for chunk in chunks if chunk.choices and chunk.choices[0].finish_reason))
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "three"}]
        # Long enough for a model of random weights to end by itself, as a rule.
        long = asked(client, max_tokens=900).choices[0].message
        messages += [{"role": "assistant", "content": long.content}, {"role": "user", "content": "four"}]
        reply = asked(client, max_tokens=4, temperature=0.5, logprobs=True, top_logprobs=2, stop=["never said"])
        played.alternatives = min(len(token.top_logprobs) for token in reply.choices[0].logprobs.content)
        try:
            client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "too long " * 1000}], max_tokens=4)
        except openai.BadRequestError as error:
            played.refused = str(error)
    with openai.OpenAI(base_url=bent_url, api_key="none", max_retries=0) as client:
        asked(client, max_tokens=3, top_p=0.5, extra_body={"top_k": 20})
    return played


class Server:
    """An app on a free port of loopback, in a thread."""

    def __init__(self, answer: Callable[[web.Request], Awaitable[web.Response]]) -> None:
        self._answer = answer
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._started.wait(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._start())
        self._started.set()
        self._loop.run_forever()

    async def _start(self) -> None:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)


class Recorder:
    """Stands in front of an engine and writes down what is said."""

    def __init__(self, engine_url: str) -> None:
        self._engine_url = engine_url.rstrip("/")
        self.exchanges: list[dict[str, Any]] = []
        self.server = Server(self._pass)

    async def _pass(self, request: web.Request) -> web.Response:
        body, url = await request.read(), f"{self._engine_url}{request.path_qs}"
        headers = {"Content-Type": "application/json"}
        async with aiohttp.ClientSession() as http, http.request(request.method, url, data=body or None, headers=headers) as answer:
            said = (await answer.read()).decode()
            kind = answer.content_type
            exchange = {"method": request.method, "path": request.path, "request": _fixed(body), "status": answer.status, "type": kind, "answer": said}
            self.exchanges.append(exchange)
            return web.Response(text=said, status=answer.status, content_type=kind)


class Replayer:
    """Answers as it was recorded, and only what was asked then."""

    def __init__(self, exchanges: list[dict[str, Any]]) -> None:
        self._left = list(exchanges)
        self.strangers: list[Any] = []
        """Requests that nobody made before."""
        self.server = Server(self._again)

    async def _again(self, request: web.Request) -> web.Response:
        wanted = (request.method, request.path, _fixed(await request.read()))
        for exchange in self._left:
            if (exchange["method"], exchange["path"], exchange["request"]) == wanted:
                # Which model it is may be asked however often.
                if exchange["method"] != "GET":
                    self._left.remove(exchange)
                return web.Response(text=exchange["answer"], status=exchange["status"], content_type=exchange["type"])
        self.strangers.append(wanted)
        return web.json_response({"error": {"message": f"this was not recorded: {wanted!r:.300}"}}, status=404)

    @property
    def num_left(self) -> int:
        """Exchanges that did not take place again."""
        return sum(exchange["method"] != "GET" for exchange in self._left)


def _fixed(body: bytes) -> Any:
    """A request without what is another each time."""
    plain = json.loads(body) if body else None
    return {name: value for name, value in plain.items() if name not in UNFIXED} if isinstance(plain, dict) else plain
