"""Whoever samples: an inference server that is sent token ids and answers with token ids.

Two dialects are read: ours, which names the version of every token, and vLLM's, which does not; there the version is the one that the run last published
(`asserted`). Sampling changes nothing on a server, so a request that got no answer is sent again, to the next server if there is one, until its deadline.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

import aiohttp
import msgspec
import numpy as np

from penstock.clock import Clock, SystemClock
from penstock.errors import BadRequestError, InfraError, InvalidError, LimitError
from penstock.types import Float32Array, Int32Array, Json, SamplerFacts, Usage, VersionRun
from penstock.wire import check_noun
from penstock.wire.connections import Wire

FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.1, 2.0
ABORT_SECONDS = 2.0
"""An engine that was told to stop has this long to give what it has."""
_LARGEST_ID, _LEAST_LOGPROB = int(np.iinfo(np.int32).max), float(np.finfo(np.float32).min)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What an engine is asked for."""

    ids: Int32Array
    num_choices: int
    max_tokens: int
    temperature: float
    seed: int
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    num_alternatives: int = 0
    filters: Mapping[str, Json] = field(default_factory=dict)
    affinity: str = ""
    """Requests with the same one go to the same server while it answers: it has the beginning of the conversation in its cache."""
    request_id: str = ""


@dataclass(slots=True, kw_only=True, eq=False)
class Sampled:
    """One reply, as far as it has come."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    alternatives: list[Mapping[str, float]] = field(default_factory=list)
    """For each token, the likeliest texts, if they were asked for."""
    versions: list[VersionRun] = field(default_factory=list)
    finish: str = ""
    stop_text: str | None = None
    usage: Usage = field(default_factory=Usage)
    sampler: SamplerFacts = field(default_factory=SamplerFacts)

    def arrays(self) -> tuple[Int32Array, Float32Array]:
        """Ids and logprobs."""
        return np.array(self.ids, np.int32), np.array(self.logprobs, np.float32)


OnTokens = Callable[[int, Sampled], None]
"""Called with the number of a choice and what there is of it, each time it has grown."""


class Engine(Protocol):
    """Samples."""

    async def sample(self, order: Order, *, deadline_seconds: float, on_tokens: OnTokens | None = None) -> list[Sampled]:
        """All choices, in order. Raises `BadRequestError` if the engine refuses the request, `InfraError` if it gives no answer in time."""

    async def abort(self, request_id: str) -> None:
        """Have a request end with what there is of it, if the engine can."""


class HttpEngine:
    """Several servers as one. Use it as an async context manager, from one event loop."""

    def __init__(
        self,
        urls: Sequence[str],
        *,
        token: str | None = None,
        policy: str = "policy",
        version: Callable[[], Awaitable[int]] | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`version` tells what the run has published, for servers that do not name versions; without it, 0."""
        self._urls = [url.rstrip("/") for url in urls]
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._policy, self._version, self._clock = policy, version, clock or SystemClock()
        self._session: aiohttp.ClientSession | None = None
        self._wires = {url: Wire(url, token=token) for url in self._urls if url.startswith("http://")}
        self._models: dict[str, str] = {}
        self._where: dict[str, str] = {}
        """The server that has a request, by its id."""

    async def __aenter__(self) -> HttpEngine:
        # No cookies and no headers that nobody reads: each costs a turn something.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            headers=self._headers,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding"),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        for wire in self._wires.values():
            wire.close()
        if self._session is not None:
            await self._session.close()

    async def sample(self, order: Order, *, deadline_seconds: float, on_tokens: OnTokens | None = None) -> list[Sampled]:
        """See `Engine`."""
        deadline = self._clock.monotonic() + deadline_seconds
        wait_seconds = FIRST_WAIT_SECONDS
        attempt = zlib.crc32(order.affinity.encode()) % len(self._urls)
        while True:
            url = self._urls[attempt % len(self._urls)]
            self._where[order.request_id] = url
            try:
                return await self._attempt(url, order, deadline - self._clock.monotonic(), on_tokens)
            except _Again as again:
                # What was shown of a reply cannot be taken back: another one must not be put behind it.
                if again.is_begun or self._clock.monotonic() + max(wait_seconds, again.seconds) >= deadline:
                    if again.is_limit:
                        raise LimitError(f"the engine is busy: {again}") from None
                    raise InfraError(f"the engine gave no reply within {deadline_seconds:g} s: {again}") from None
                await self._clock.sleep(max(wait_seconds, again.seconds))
            finally:
                self._where.pop(order.request_id, None)
            wait_seconds = min(2 * wait_seconds, LONGEST_WAIT_SECONDS)
            attempt += 1

    async def abort(self, request_id: str) -> None:
        """See `Engine`."""
        url = self._where.get(request_id)
        if url is None:
            return
        body = msgspec.json.encode({"ids": [request_id]})
        try:
            async with self._http().post(f"{url}/abort", data=body, timeout=aiohttp.ClientTimeout(total=ABORT_SECONDS)) as answer:
                await answer.read()
        except (aiohttp.ClientError, TimeoutError):
            return

    async def model(self, url: str, seconds: float = 10.0) -> str:
        """Name of the model that a server serves; empty if it does not say."""
        if url not in self._models:
            try:
                async with self._http().get(f"{url}/v1/models", timeout=aiohttp.ClientTimeout(total=max(0.001, seconds))) as answer:
                    self._models[url] = str(msgspec.json.decode(await answer.read())["data"][0]["id"]) if answer.status == 200 else ""
            except (msgspec.DecodeError, KeyError, IndexError, TypeError):
                self._models[url] = ""
        return self._models[url]

    def _http(self) -> aiohttp.ClientSession:
        assert self._session is not None, "use the engine as an async context manager"
        return self._session

    async def _attempt(self, url: str, order: Order, seconds: float, on_tokens: OnTokens | None) -> list[Sampled]:
        replies = [Sampled() for _ in range(order.num_choices)]
        try:
            asserted = 0 if self._version is None else await self._version()
            body = msgspec.json.encode(_body(order, await self.model(url, seconds), is_streamed=on_tokens is not None))
            wire = self._wires.get(url)
            if on_tokens is None and wire is not None:
                answered = await wire.post("/v1/completions", body, seconds=max(0.001, seconds))
                if answered.status != 200:
                    raise _refusal(answered.status, answered.body, answered.headers)
                _take(msgspec.json.decode(answered.body), replies, order)
            else:
                await self._stream(url, body, seconds, replies, order, on_tokens or (lambda index, reply: None))
        except (aiohttp.ClientError, OSError) as error:
            raise _Again(str(error) or type(error).__name__, is_begun=on_tokens is not None and any(reply.ids for reply in replies)) from error
        except (msgspec.DecodeError, KeyError, IndexError, TypeError, ValueError) as error:
            raise InfraError(f"the engine's answer cannot be read: {type(error).__name__}: {error!s:.200}") from error
        for reply in replies:
            _complete(reply, order, self._policy, asserted)
        return replies

    async def _stream(self, url: str, body: bytes, seconds: float, replies: list[Sampled], order: Order, on_tokens: OnTokens) -> None:
        """Read a reply as it comes, event by event or, from a server that was not asked to stream, at once."""
        limits = aiohttp.ClientTimeout(total=max(0.001, seconds), sock_connect=5.0)
        async with self._http().post(f"{url}/v1/completions", data=body, timeout=limits) as answer:
            if answer.status != 200:
                raise _refusal(answer.status, await answer.read(), {name.lower(): value for name, value in answer.headers.items()})
            if answer.content_type == "application/json":
                _take(msgspec.json.decode(await answer.read()), replies, order)
                return
            async for event in _events(answer.content):
                for index in _take(event, replies, order):
                    on_tokens(index, replies[index])


class _Again(Exception):
    """No answer this time."""

    def __init__(self, trouble: str, *, seconds: float = 0.0, is_limit: bool = False, is_begun: bool = False) -> None:
        super().__init__(trouble)
        self.seconds, self.is_limit, self.is_begun = seconds, is_limit, is_begun


def _body(order: Order, model: str, *, is_streamed: bool) -> dict[str, Any]:
    body: dict[str, Any] = {
        "prompt": order.ids.tolist(),
        "n": order.num_choices,
        "max_tokens": order.max_tokens,
        "temperature": order.temperature,
        "seed": order.seed,
        "logprobs": order.num_alternatives,
        "return_token_ids": True,
        **order.filters,
    }
    body |= {"model": model} if model else {}
    body |= {"stop": list(order.stop)} if order.stop else {}
    body |= {"stop_token_ids": list(order.stop_ids)} if order.stop_ids else {}
    body |= {"request_id": order.request_id} if order.request_id else {}
    return body | ({"stream": True, "stream_options": {"include_usage": True}} if is_streamed else {})


async def _events(content: aiohttp.StreamReader) -> AsyncIterator[Any]:
    """The values of server-sent events."""
    pending = b""
    async for chunk in content.iter_any():
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            if line.startswith(b"data:") and (data := line[5:].strip()) != b"[DONE]":
                event = msgspec.json.decode(data)
                if isinstance(event, dict) and "error" in event:
                    raise _Again(f"the engine failed: {event['error']!s:.200}", is_begun=True)
                yield event


def _take(answer: Mapping[str, Any], replies: list[Sampled], order: Order) -> list[int]:
    """Add what an answer, or a chunk of one, holds to the replies, and tell which have grown."""
    grown = []
    for choice in answer["choices"]:
        index = choice["index"]
        reply = replies[index]
        prompt = choice.get("prompt_token_ids")
        if prompt is not None and len(prompt) != len(order.ids):
            raise InfraError(f"the engine was sent {len(order.ids)} tokens and continued {len(prompt)}")
        ids = choice.get("token_ids")
        if ids is None and choice.get("text"):
            raise InfraError("the engine does not tell the token ids that it samples (return_token_ids): use one that does")
        logprobs = choice.get("logprobs") or {}
        reply.ids += ids or []
        reply.logprobs += logprobs.get("token_logprobs") or []
        reply.alternatives += logprobs.get("top_logprobs") or []
        reply.versions += msgspec.convert(choice.get("versions") or (), list[VersionRun])
        reply.finish = choice.get("finish_reason") or reply.finish
        stopped = choice.get("stop_reason")
        reply.stop_text = stopped if isinstance(stopped, str) else reply.stop_text
        grown.append(index)
    usage = answer.get("usage")
    for reply in replies:
        if usage:
            details = usage.get("prompt_tokens_details") or {}
            reply.usage = Usage(
                prompt_tokens=usage.get("prompt_tokens") or 0, cached_tokens=details.get("cached_tokens") or 0, seconds=float(usage.get("seconds") or 0.0)
            )
        if answer.get("sampler"):
            reply.sampler = msgspec.convert(answer["sampler"], SamplerFacts)
    return grown


def _complete(reply: Sampled, order: Order, policy: str, asserted: int) -> None:
    """Fill in what the engine leaves out, and refuse what does not fit together."""
    num_tokens = len(reply.ids)
    if not reply.finish:
        raise InfraError("the engine's reply broke off")
    if num_tokens > order.max_tokens or (num_tokens == 0 and reply.finish != "abort"):
        raise InfraError(f"the engine answered {num_tokens} tokens where 1 to {order.max_tokens} were asked for")
    if len(reply.logprobs) != num_tokens:
        raise InfraError(f"the engine answered {num_tokens} tokens with {len(reply.logprobs)} logprobs")
    _check_tokens(reply)
    if not reply.versions and num_tokens:
        reply.versions = [VersionRun(policy=policy, version=asserted, count=num_tokens)]
        reply.sampler = SamplerFacts(temperature=order.temperature, filters=_numbers(order.filters), engine="openai")
    for run in reply.versions:
        _check_version(run)
    if sum(run.count for run in reply.versions) != num_tokens:
        raise InfraError(f"the engine answered {num_tokens} tokens with versions of {sum(run.count for run in reply.versions)}")


def _check_tokens(reply: Sampled) -> None:
    """Refuse, before it is kept or told, what could not be recorded."""
    if not reply.ids:
        return
    ids, logprobs = np.array(reply.ids), np.array(reply.logprobs)
    if ids.dtype.kind != "i" or ids.min() < 0 or ids.max() > _LARGEST_ID:
        raise InfraError(f"the engine answered {reply.ids!s:.80} in place of token ids")
    # NaN compares false with everything.
    if logprobs.dtype.kind not in "if" or not (logprobs.max() <= 0 and logprobs.min() >= _LEAST_LOGPROB):
        raise InfraError(f"the engine answered {reply.logprobs!s:.80} in place of logprobs: finite, and 0 at most")


@lru_cache(maxsize=4096)
def _check_version(run: VersionRun) -> None:
    try:
        check_noun(run)
    except InvalidError as error:
        raise InfraError(f"the engine's answer cannot be read: {error}") from None


def _numbers(filters: Mapping[str, Json]) -> dict[str, float]:
    return {name: float(value) if isinstance(value, (int, float)) else 1.0 for name, value in filters.items()}


def _refusal(status: int, answer: bytes, headers: Mapping[str, str]) -> Exception:
    """What a server said no to."""
    try:
        told = msgspec.json.decode(answer)
        # Ours and OpenAI's say {"error": {"message"}}; older vLLM says {"message"} right away.
        message = str((told.get("error") or told)["message"])
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
        message = f"status {status}"
    if status in (429, 502, 503, 504):
        named = headers.get("retry-after", "0")
        return _Again(message[:200], seconds=float(named) if named.isdecimal() else 0.0, is_limit=status == 429)
    return (
        BadRequestError(f"the engine refuses the request: {message[:500]}")
        if 400 <= status < 500
        else InfraError(f"the engine failed ({status}): {message[:200]}")
    )


async def sample_whole(
    engine: Engine, order: Order, *, deadline_seconds: float, clock: Clock, is_wanted: Callable[[], bool], on_tokens: OnTokens | None = None
) -> list[Sampled]:
    """As `Engine.sample`, and what an engine gave up half way (to load weights, or to stop) is continued from the same tokens, while it is wanted."""
    deadline = clock.monotonic() + deadline_seconds
    replies = await engine.sample(order, deadline_seconds=deadline_seconds, on_tokens=on_tokens)
    for index, reply in enumerate(replies):
        part = 0
        while reply.finish == "abort" and len(reply.ids) < order.max_tokens and is_wanted():
            part += 1
            if clock.monotonic() + FIRST_WAIT_SECONDS >= deadline:
                raise InfraError(f"the engine aborted a reply {part} times and did not finish it within {deadline_seconds:g} s")
            if not reply.ids:
                await clock.sleep(FIRST_WAIT_SECONDS)
            (more,) = await engine.sample(
                _rest(order, reply, index, part), deadline_seconds=deadline - clock.monotonic(), on_tokens=_behind(on_tokens, index, reply)
            )
            _join(reply, more)
        if reply.finish == "abort" and len(reply.ids) == order.max_tokens:
            reply.finish = "length"
    return replies


def _rest(order: Order, reply: Sampled, index: int, part: int) -> Order:
    return Order(
        ids=np.concatenate([order.ids, np.array(reply.ids, np.int32)]),
        num_choices=1,
        max_tokens=order.max_tokens - len(reply.ids),
        temperature=order.temperature,
        seed=(order.seed + 7919 * (index + 1) + part) % 2**63,
        stop=order.stop,
        stop_ids=order.stop_ids,
        num_alternatives=order.num_alternatives,
        filters=order.filters,
        affinity=order.affinity,
        request_id=order.request_id,
    )


def _behind(on_tokens: OnTokens | None, index: int, reply: Sampled) -> OnTokens | None:
    if on_tokens is None:
        return None

    def tell(_: int, more: Sampled) -> None:
        on_tokens(index, Sampled(ids=reply.ids + more.ids, logprobs=reply.logprobs + more.logprobs, alternatives=reply.alternatives + more.alternatives))

    return tell


def _join(reply: Sampled, more: Sampled) -> None:
    reply.ids += more.ids
    reply.logprobs += more.logprobs
    reply.alternatives += more.alternatives
    reply.versions += more.versions
    reply.finish, reply.stop_text, reply.sampler = more.finish, more.stop_text, more.sampler


async def end_request(engine: Engine, request_id: str, task: asyncio.Task[list[Sampled]]) -> None:
    """Have a request whose client has gone end with what there is of it; one that does not end in time is given up."""
    await engine.abort(request_id)
    await asyncio.wait({task}, timeout=ABORT_SECONDS)
    task.cancel()
