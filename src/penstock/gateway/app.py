"""The gateway's routes.

POST /sessions                              open a session; answers its id and the base_url for its agent
GET  /sessions                              sessions that are open, without the ids that would open them
GET  /sessions/{id}                         how a session stands
POST /sessions/{id}/v1/chat/completions     what an agent asks, in OpenAI's shape
GET  /sessions/{id}/v1/models[/{name}]
POST /sessions/{id}/reward                  {"reward": 1.0} or {"rewards": {"name": 1.0}}, with "turn" (and "choice") for one reply
POST /sessions/{id}/end                     {"reward"?, "rewards"?, "status"?, "failure"?, "metadata"?}: the rollout goes to the buffer
GET  /livez, /readyz, /metrics
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Router

from penstock.errors import BadRequestError, InvalidError
from penstock.gateway.events import Ended, Rewarded
from penstock.gateway.failures import TOLD, openai_error, openai_refusal
from penstock.gateway.replies import new_id
from penstock.gateway.session import ClientGone, Session
from penstock.gateway.sessions import Sessions
from penstock.gateway.slots import OpenSession
from penstock.gateway.streams import ChatStream, TokenTexts
from penstock.gateway.watching import Gone
from penstock.httpd import DirectReply, DirectRequest, DirectRoute, Scope, reply, routed, router, scoped
from penstock.metrics import render_prometheus
from penstock.types import Json, RolloutStatus
from penstock.wire import check_id, read_body

Handler = Callable[[HttpRequest], Awaitable[Response]]

CHAT_PATH = "/sessions/{id}/v1/chat/completions"
TOTAL = "reward"
"""Name of a session's reward that was given without one."""
_NO_STREAM = re.compile(rb'"stream"\s*:\s*(false|null)')
_ASK_HEADERS = (b"idempotency-key", b"x-stainless-retry-count")


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardBody:
    """Body of `/reward`."""

    reward: float | None = None
    rewards: Mapping[str, float] = field(default_factory=dict)
    turn: str | int | None = None
    """Id of a completion, or its number from 0; None: the session as a whole."""
    choice: int = 0

    def event(self, session: Session) -> Rewarded:
        """What was given. Raises `InvalidError` for nothing, `UnknownError` for a reply that is not there."""
        if self.reward is None and not self.rewards:
            raise InvalidError("reward: give a number, or named numbers as rewards")
        if self.turn is not None:
            return Rewarded(rewards=self.rewards, reply=session.reply(self.turn, self.choice), own=self.reward)
        return Rewarded(rewards=dict(self.rewards) | ({} if self.reward is None else {TOTAL: self.reward}))


@dataclass(frozen=True, slots=True, kw_only=True)
class EndBody:
    """Body of `/end`. It may be empty."""

    reward: float | None = None
    rewards: Mapping[str, float] = field(default_factory=dict)
    status: RolloutStatus = RolloutStatus.OK
    """`truncated`: a limit of the agent cut it off. `infra_error`: something failed, the slot is tried again. `env_error`: it cannot be tried."""
    failure: str | None = None
    """What went wrong, for the last two."""
    metadata: Mapping[str, Json] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.status.usable and self.failure is not None:
            raise InvalidError(f"failure: a session that is {self.status} did not fail; say infra_error or env_error")


class Gateway:
    """The routes over some sessions."""

    def __init__(self, sessions: Sessions, texts: TokenTexts, counts: Counter[str], *, models: tuple[str, ...] = (), public_url: str = "") -> None:
        self._sessions, self._texts, self._counts = sessions, texts, counts
        self._models, self._public_url = models, public_url.rstrip("/")

    def app(self, ready: Callable[[], Awaitable[bool]] | None = None) -> Router:
        """An ASGI app, to be put behind a `Guard`. `ready` says whether what it needs answers."""
        self._ready = ready
        one = "/sessions/{id}"
        routes = [
            *(routed(route) for route in self.direct if route.path != CHAT_PATH),
            scoped("/sessions", self.list, Scope.VIEW),
            scoped(one, self.show, Scope.PRODUCE),
            scoped(CHAT_PATH, _openai(self.chat), Scope.PRODUCE, methods=["POST"]),
            scoped(one + "/v1/models", self.models, Scope.PRODUCE),
            scoped(one + "/v1/models/{name:path}", self.model, Scope.PRODUCE),
            scoped("/livez", self.livez, None),
            scoped("/readyz", self.readyz, Scope.VIEW),
            scoped("/metrics", self.metrics, Scope.VIEW),
        ]
        return router(routes, lifespan=self._lifespan)

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: object) -> AsyncIterator[None]:
        sweeping = asyncio.create_task(self._sessions.sweep_forever())
        yield
        sweeping.cancel()
        await asyncio.gather(sweeping, return_exceptions=True)

    async def open(self, request: DirectRequest) -> DirectReply:
        """`POST /sessions`."""
        session = await self._sessions.open(read_body(request.body, OpenSession) if request.body.strip() else OpenSession())
        return _reply(self._shown(_host(request), session), 201)

    async def list(self, _: HttpRequest) -> Response:
        """`GET /sessions`. An id lets its holder speak for the session, so only its beginning is shown."""
        live = [_state(session) | {"id": session.opened.session[:8]} for session in self._sessions.live()]
        return reply({"open": self._sessions.num_open, "sessions": live})

    async def show(self, request: HttpRequest) -> Response:
        """`GET /sessions/{id}`."""
        return reply(self._shown(request.headers.get("host", ""), await self._find(request)))

    @functools.cached_property
    def direct(self) -> tuple[DirectRoute, ...]:
        """The routes that agents and those who run them ask all the time, for the server's lane: first that of whole replies. Streams come to `chat`."""
        one = "/sessions/{id}"
        return (
            DirectRoute(method="POST", path=CHAT_PATH, answer=self.complete, needs=Scope.PRODUCE, refused=openai_refusal, takes=_is_whole),
            DirectRoute(method="POST", path="/sessions", answer=self.open, needs=Scope.PRODUCE),
            DirectRoute(method="POST", path=one + "/reward", answer=self.reward, needs=Scope.PRODUCE),
            DirectRoute(method="POST", path=one + "/end", answer=self.end, needs=Scope.PRODUCE),
        )

    async def complete(self, request: DirectRequest) -> DirectReply:
        """`POST /sessions/{id}/v1/chat/completions`, told whole."""
        id = request.head.params["id"]
        session = self._sessions.known(id) or await self._sessions.find(id)
        ask = session.reader.read(request.body, _ask_headers(request.head.headers))
        if ask.stream:
            raise BadRequestError("stream: must be spelled without escapes", "stream")
        gone = Gone()
        request.when_gone(gone.set)
        try:
            answer = await session.complete(ask, id=new_id(), gone=gone)
        except ClientGone:
            return DirectReply(b"", 408)  # nobody reads it
        if not gone.is_set():
            session.delivered(ask)
        return DirectReply(msgspec.json.encode(answer.whole(ask, self._texts)))

    async def chat(self, request: HttpRequest) -> Response:
        """`POST /sessions/{id}/v1/chat/completions`, in whatever way it is asked for."""
        body = await request.body()
        if _is_whole(body):
            return await self.direct[0].endpoint(request)
        session = await self._find(request)
        ask = session.reader.read(body, request.headers)
        return ChatStream(session, ask, self._texts) if ask.stream else await self.direct[0].endpoint(request)

    async def models(self, request: HttpRequest) -> Response:
        """`GET /sessions/{id}/v1/models`."""
        await self._find(request)
        return reply({"object": "list", "data": [_model(name) for name in self._models]})

    async def model(self, request: HttpRequest) -> Response:
        """`GET /sessions/{id}/v1/models/{name}`: whatever it is called, it is the one that is served."""
        await self._find(request)
        return reply(_model(request.path_params["name"]))

    async def reward(self, request: DirectRequest) -> DirectReply:
        """`POST /sessions/{id}/reward`."""
        session = await self._sessions.find(request.head.params["id"])
        await session.tell(rewarded=_event(session, read_body(request.body, RewardBody)))
        return _reply({"rewards": session.rewards.total, "turns": session.rewards_of_turns()})

    async def end(self, request: DirectRequest) -> DirectReply:
        """`POST /sessions/{id}/end`."""
        session = await self._sessions.find(request.head.params["id"])
        wanted = read_body(request.body, EndBody) if request.body.strip() else EndBody()
        rewarded = None
        if session.ended is None and (wanted.reward is not None or wanted.rewards):
            rewarded = _event(session, RewardBody(reward=wanted.reward, rewards=wanted.rewards))
        failed = None if wanted.status.usable else wanted.failure or "its client says so"
        error = None if wanted.status.usable else "client"
        ended = Ended(status=wanted.status, failure=failed, error=error, metadata=wanted.metadata)
        session = await self._sessions.end(session.opened.session, ended, rewarded)
        return _reply(self._shown(_host(request), session))

    async def livez(self, _: HttpRequest) -> Response:
        """The process answers."""
        return reply({"live": True})

    async def readyz(self, _: HttpRequest) -> Response:
        """The buffer and an engine answer."""
        is_ready = self._ready is None or await self._ready()
        return reply({"ready": is_ready}, 200 if is_ready else 503)

    async def metrics(self, _: HttpRequest) -> Response:
        """Prometheus text."""
        values: dict[str, float] = {"gateway/open": self._sessions.num_open}
        values |= {f"gateway/{name}": self._counts[name] for name in ("sessions", "turns", "tokens_sampled", "redelivered", "clients_gone")}
        values |= {f"gateway/{name}": count for name, count in sorted(self._counts.items()) if "/" in name}
        return PlainTextResponse(render_prometheus(values), media_type="text/plain; version=0.0.4")

    async def _find(self, request: HttpRequest) -> Session:
        return await self._sessions.find(request.path_params["id"])

    def _shown(self, host: str, session: Session) -> dict[str, Any]:
        root = self._public_url or f"http://{host}"
        return _state(session) | {"id": session.opened.session, "base_url": f"{root}/sessions/{session.opened.session}/v1"}


def _reply(value: Any, status: int = 200) -> DirectReply:
    return DirectReply(msgspec.json.encode(value), status)


def _host(request: DirectRequest) -> str:
    """The name under which a client reached us."""
    return (request.head.header(b"host") or b"").decode("latin1")


def _event(session: Session, body: RewardBody) -> Rewarded:
    """What a client gives. Raises what `RewardBody.event` does, and `InvalidError` for a name that is none."""
    for name in body.rewards:
        check_id(name, "rewards")
    return body.event(session)


def _state(session: Session) -> dict[str, Any]:
    opened, ended, stored = session.opened, session.ended, session.stored
    slot = opened.slot
    return {
        "state": "open" if ended is None else "ending" if stored is None else "ended",
        "run": slot.run,
        "environment": slot.environment,
        "problem_id": slot.problem_id,
        "group_id": slot.group_id,
        "member": slot.member,
        "retry": slot.retry,
        "purpose": slot.purpose,
        "seed": opened.seed,
        "deadline_at": opened.deadline_at,
        "turns": session.num_answers,
        "forks": session.num_forks,
        "tokens": session.conversation.num_tokens,
        "requests_under_way": session.num_requests,
        "rewards": session.rewards.total,
        "status": None if ended is None else ended.status,
        "failure": None if ended is None else ended.failure,
        "rollout_uid": None if stored is None else slot.uid,
        "stored": stored,
    }


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "penstock"}


def _is_whole(body: bytes) -> bool:
    """Whether a request asks for no stream. Inside of a text the key would stand with a backslash, so it is a key wherever it stands."""
    return b'"stream"' not in body or (body.count(b'"stream"') == 1 and _NO_STREAM.search(body) is not None)


@functools.lru_cache(maxsize=1024)
def _ask_headers(headers: tuple[tuple[bytes, bytes], ...]) -> dict[str, str]:
    """The headers that say something about a request. Most have none, and the same ones as the request before."""
    # Of several with one name the last counts, as with `Head.header`.
    return {name.decode(): value.decode("latin1") for name, value in headers if name in _ASK_HEADERS}


def _openai(handler: Handler) -> Handler:
    """`handler`, whose errors are told as clients of OpenAI expect them."""

    async def handle(request: HttpRequest) -> Response:
        try:
            return await handler(request)
        except TOLD as error:
            return openai_error(error, request.state.request_id)

    return handle
