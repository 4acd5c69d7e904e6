"""The inference server: OpenAI's routes, weights, health, over the embedded engine.

GET  /v1/models, /v1/models/{name}      what is served
POST /v1/completions                    text or token ids
POST /v1/chat/completions
GET  /v1/weights                        policy, version and digest that sample now
POST /v1/weights                        {"policy", "version", "digest", "term"?}: these are the newest; answers what is served
POST /abort                             {"request_id"?, "ids"?: [...]}: end these requests (all, if none is named); they answer with what they have
GET  /livez, /readyz, /metrics
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import torch
import uvloop
from starlette.requests import Request as HttpRequest
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Router

from penstock.errors import BadRequestError, InfraError, InputError, InvalidError, LimitError, PenstockError
from penstock.httpd import DirectReply, DirectRequest, DirectRoute, Scope, bind, reply, router, scoped, serve_app
from penstock.httpd.direct import refusal
from penstock.httpd.operations import JSON
from penstock.inference.config import InferenceConfig
from penstock.inference.desk import WeightsDesk, read_push
from penstock.inference.engine.architecture import read_architecture
from penstock.inference.engine.core import Engine
from penstock.inference.follow import follow, newest_version
from penstock.inference.loop import EngineLoop
from penstock.inference.protocol import read_chat, read_completion
from penstock.inference.service import Completions, Conversation, load_template
from penstock.inference.streams import EventStream, unless_gone
from penstock.inference.weights import served_from_digest, served_from_model
from penstock.metrics import render_prometheus
from penstock.wire import parse_json

log = logging.getLogger(__name__)

ABORT_AFTER_SECONDS = 5.0
"""After SIGTERM, requests under way have this long to end by themselves; then they answer with what they have."""

GONE = 499
"""Status for a client that left. Nobody reads it; the number is what other servers log."""

Handler = Callable[[HttpRequest], Awaitable[Response]]


def serve(config: InferenceConfig) -> None:
    """Load the model and serve it until SIGTERM or SIGINT.

    Raises `ConfigError`, `ProcessError` or `WeightsError` if it cannot start, `InfraError` if the engine fails.
    """
    # First, so that a port in use is told before a model is loaded.
    listener = bind(config.access.host, config.port)
    torch.set_num_threads(config.threads)
    architecture = read_architecture(config.model)
    if config.buffer_url:
        newest = asyncio.run(newest_version(config))
        config = replace(config, version=newest.version, digest=newest.digest)
    if config.digest:
        assert config.weights_dir is not None
        served = served_from_digest(config.weights_dir, architecture, policy=config.policy, version=config.version, digest=config.digest)
    else:
        served = served_from_model(config.model, architecture, policy=config.policy, version=config.version)
    template = load_template(config.model)
    if template is None:
        log.warning("%s has no tokenizer.json: only /v1/completions with token ids is served", config.model)
    engine = Engine(served, config.limits, decode=template.decode if template is not None else lambda _: "")
    log.info("version %d of %s (%s) is served", served.version, served.policy, served.digest)
    # The server is told to stop like by anybody else, so that connections are closed in order.
    loop = EngineLoop(engine, on_failure=lambda: os.kill(os.getpid(), signal.SIGTERM))
    completions = Completions(loop, template, model_name=config.model.name)
    server = InferenceServer(config, loop, completions)
    uvloop.run(serve_app(server.app(), config.access, listener, port_file=config.port_file, direct=server.direct))
    if loop.has_failed:
        raise InfraError("the engine failed; the log says why")


class InferenceServer:
    """The routes."""

    def __init__(self, config: InferenceConfig, loop: EngineLoop, completions: Completions) -> None:
        self._config = config
        self._loop = loop
        self._completions = completions
        self._desk = WeightsDesk(loop, config.weights_dir, config.on_swap)
        completion, chat = self._completions.begin_completion, self._completions.begin_chat
        self._completion = self._direct("/v1/completions", lambda body: completion(read_completion(body)))
        self._chat = self._direct("/v1/chat/completions", lambda body: chat(read_chat(body)))

    def _direct(self, path: str, begin: Callable[[bytes], Conversation]) -> DirectRoute:
        return DirectRoute(
            method="POST",
            path=path,
            answer=partial(self._whole, begin),
            needs=Scope.PRODUCE,
            refused=_openai_refusal,
            takes=lambda body: not _names_a_stream(body),
        )

    @property
    def direct(self) -> tuple[DirectRoute, ...]:
        """Completions that are not streamed, for the server's lane."""
        return (self._completion, self._chat)

    def app(self) -> Router:
        """An ASGI app, to be put behind a `Guard`."""
        routes = [
            scoped("/v1/models", self.models, Scope.PRODUCE),
            scoped("/v1/models/{name:path}", self.model, Scope.PRODUCE),
            scoped("/v1/completions", _openai(self.completions), Scope.PRODUCE, methods=["POST"]),
            scoped("/v1/chat/completions", _openai(self.chat), Scope.PRODUCE, methods=["POST"]),
            scoped("/v1/weights", self.served, Scope.VIEW),
            scoped("/v1/weights", self.push, Scope.WEIGHTS, methods=["POST"]),
            scoped("/abort", self.abort, Scope.PRODUCE, methods=["POST"]),
            scoped("/livez", self.livez, None),
            scoped("/readyz", self.readyz, Scope.VIEW),
            scoped("/metrics", self.metrics, Scope.VIEW),
        ]
        return router(routes, lifespan=self._lifespan)

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: object) -> AsyncIterator[None]:
        self._loop.start()
        following = asyncio.create_task(follow(self._config, self._desk)) if self._config.buffer_url else None
        with _on_sigterm(self._abort_soon):
            yield
        if following is not None:
            following.cancel()
        await self._loop.close()

    def _abort_soon(self) -> None:
        self._loop.abort_after(ABORT_AFTER_SECONDS)

    async def completions(self, request: HttpRequest) -> Response:
        """`POST /v1/completions`."""
        if not _names_a_stream(await request.body()):
            return await self._completion.endpoint(request)
        return await self._answer(request, self._completions.begin_completion(read_completion(await request.body())))

    async def chat(self, request: HttpRequest) -> Response:
        """`POST /v1/chat/completions`."""
        if not _names_a_stream(await request.body()):
            return await self._chat.endpoint(request)
        return await self._answer(request, self._completions.begin_chat(read_chat(await request.body())))

    async def _whole(self, begin: Callable[[bytes], Conversation], request: DirectRequest) -> DirectReply:
        """The whole answer to a request; nothing more is computed for a client that has gone."""
        conversation = begin(request.body)
        working = asyncio.ensure_future(self._completions.whole(conversation))

        def leave() -> None:
            working.cancel()

        request.when_gone(leave)
        try:
            if conversation.call.stream:
                raise BadRequestError("stream: must be spelled without escapes", "stream")
            await asyncio.wait({working})
            return DirectReply(msgspec.json.encode(working.result())) if not working.cancelled() else DirectReply(b"", GONE)
        finally:
            working.cancel()
            self._completions.end(conversation)

    async def _answer(self, request: HttpRequest, conversation: Conversation) -> Response:
        if conversation.call.stream:
            return EventStream(self._completions.events(conversation), lambda: self._completions.end(conversation))
        try:
            shape = await unless_gone(request, self._completions.whole(conversation))
        finally:
            self._completions.end(conversation)
        return reply(shape) if shape is not None else Response(status_code=GONE)

    async def models(self, _: HttpRequest) -> Response:
        """`GET /v1/models`."""
        return reply({"object": "list", "data": [self._model()]})

    async def model(self, _: HttpRequest) -> Response:
        """`GET /v1/models/{name}`: one model is served, under any name."""
        return reply(self._model())

    def _model(self) -> dict[str, Any]:
        served = self._loop.engine.served
        return {
            "id": self._config.model.name,
            "object": "model",
            "created": 0,
            "owned_by": "penstock",
            "max_model_len": self._loop.engine.context_tokens,
            "policy": served.policy,
            "version": served.version,
            "digest": served.digest,
        }

    async def served(self, _: HttpRequest) -> Response:
        """`GET /v1/weights`."""
        return reply(self._desk.shown())

    async def push(self, request: HttpRequest) -> Response:
        """`POST /v1/weights`."""
        return reply(await self._desk.take(read_push(await request.body())))

    async def abort(self, request: HttpRequest) -> Response:
        """`POST /abort`."""
        return reply({"aborted": await self._loop.abort(_abort_ids(await request.body()))})

    async def livez(self, _: HttpRequest) -> Response:
        """The process answers."""
        return reply({"live": True})

    async def readyz(self, _: HttpRequest) -> Response:
        """The engine computes, and with the weights that it was told are the newest."""
        is_ready = self._loop.is_alive and self._desk.is_newest
        return reply({"ready": is_ready} | self._desk.shown(), 200 if is_ready else 503)

    async def metrics(self, _: HttpRequest) -> Response:
        """Prometheus text."""
        engine = self._loop.engine
        values = {
            "inference/running": engine.num_running,
            "inference/waiting": engine.num_queued,
            "inference/kv_tokens": engine.reserved_tokens,
            "inference/tokens_sampled": engine.counters.sampled_tokens,
            "inference/version": engine.served.version,
        }
        return PlainTextResponse(render_prometheus(values), media_type="text/plain; version=0.0.4")


def _openai(handler: Handler) -> Handler:
    """`handler`, whose errors about the request are told as clients of OpenAI expect them."""

    async def handle(request: HttpRequest) -> Response:
        try:
            return await handler(request)
        except InputError as error:
            told = _openai_refusal(error, request.state.request_id)
            return Response(told.body, told.status, {name.decode(): value.decode() for name, value in told.headers}, JSON)

    return handle


def _openai_refusal(error: PenstockError, request_id: str) -> DirectReply:
    """An error about the request in the shape that clients of OpenAI expect; any other in ours."""
    if not isinstance(error, InputError):
        return refusal(error, request_id)
    is_limit = isinstance(error, LimitError)
    shape = {
        "message": str(error),
        "type": "rate_limit_error" if is_limit else "invalid_request_error",
        "param": error.field if isinstance(error, BadRequestError) else None,
        "code": error.code,
        "request_id": request_id,
    }
    headers = ((b"retry-after", str(int(error.retry_after_seconds)).encode()),) if isinstance(error, LimitError) else ()
    return DirectReply(msgspec.json.encode({"error": shape}), error.http_status if is_limit else 400, headers=headers)


def _names_a_stream(body: bytes) -> bool:
    """Whether the answer may have to be streamed. (Who spells the word with escapes is refused.)"""
    return b"stream" in body


def _abort_ids(body: bytes) -> frozenset[str] | None:
    """Which requests are meant; None for all. A key that we do not know is refused: it may have been meant to name one."""
    fields = parse_json(body) if body else {}
    if not isinstance(fields, dict) or fields.keys() - {"ids", "request_id"}:
        raise InvalidError('the body must be {"request_id": "..."}, {"ids": [...]}, or empty to abort all')
    one, several = fields.get("request_id"), fields.get("ids")
    if one is None and several is None:
        return None
    if not (one is None or isinstance(one, str)) or not (several is None or (isinstance(several, list) and all(isinstance(id, str) for id in several))):
        raise InvalidError("request_id must be a text, ids a list of texts")
    return frozenset(several or ()) | ({one} if one is not None else frozenset())


@contextlib.contextmanager
def _on_sigterm(function: Callable[[], None]) -> Any:
    """Call `function`, too, when the server is told to stop."""
    before = signal.getsignal(signal.SIGTERM)

    def handle(number: int, frame: Any) -> None:
        function()
        if callable(before):
            before(number, frame)

    signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
