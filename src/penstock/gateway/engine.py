"""Whoever samples: inference servers that are sent token ids and answer with token ids (see `answers`).

Sampling changes nothing on a server, so a request that got no answer is sent again, to the next server if there is one, until its deadline.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import aiohttp
import msgspec

from penstock.clock import Clock, SystemClock
from penstock.errors import BadRequestError, InfraError, LimitError
from penstock.gateway.answers import Answer, complete, read_answer, take
from penstock.gateway.sampling import OnTokens, Order, Sampled
from penstock.gateway.spelling import spell
from penstock.inference.client import NoAnswer, Placing
from penstock.wire.connections import Wire

FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.1, 2.0
ABORT_SECONDS = 2.0
"""An engine that was told to stop has this long to give what it has."""


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
        placing: Placing | None = None,
    ) -> None:
        """`version` tells what the run has published, for servers that do not name versions; without it, 0. `placing` chooses among the servers, for a gateway
        that shares them with others of its process; without it, a session has the server that its name falls on, and the next one when that is silent."""
        self._urls = [url.rstrip("/") for url in urls]
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._policy, self._version, self._clock = policy, version, clock or SystemClock()
        self._session: aiohttp.ClientSession | None = None
        self._wires = {url: Wire(url, token=token) for url in self._urls if url.startswith("http://")}
        self._placing = placing
        self._models: dict[str, str] = {}
        self._where: dict[str, str] = {}
        """The server that has a request, by its id."""
        self._naming: set[str] = set()
        """Servers that name the versions of their tokens: nobody has to ask the run for them."""

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
        if self._placing is not None:

            def call(index: int, seconds: float) -> Awaitable[list[Sampled]]:
                return self._placed(self._urls[index], order, seconds, on_tokens)

            return await self._placing(call, affinity=order.affinity or None, deadline_seconds=deadline_seconds)
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

    async def _placed(self, url: str, order: Order, seconds: float, on_tokens: OnTokens | None) -> list[Sampled]:
        """One attempt, for whoever places them: what another server may do better is `NoAnswer`."""
        self._where[order.request_id] = url
        has_begun = False

        def tell(index: int, reply: Sampled) -> None:
            nonlocal has_begun
            has_begun = True
            assert on_tokens is not None
            on_tokens(index, reply)

        try:
            return await self._attempt(url, order, seconds, None if on_tokens is None else tell)
        except _Again as again:
            if again.is_begun:  # what was shown of a reply cannot be taken back
                raise InfraError(f"the engine's reply broke off: {again}") from again
            raise NoAnswer(str(again), is_full=again.is_limit, is_lost=not again.is_limit, named_seconds=again.seconds) from again
        except InfraError as error:
            if has_begun:
                raise
            raise NoAnswer(str(error)) from error
        finally:
            self._where.pop(order.request_id, None)

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
            asserted = 0 if url in self._naming else await self._published()
            body = _body(order, self._models.get(url) or await self.model(url, seconds), is_streamed=on_tokens is not None)
            wire = self._wires.get(url)
            if on_tokens is None and wire is not None:
                answered = await wire.post("/v1/completions", body, seconds=max(0.001, seconds))
                if answered.status != 200:
                    raise _refusal(answered.status, answered.body, answered.headers)
                take(read_answer(answered.body), replies, order)
            else:
                await self._stream(url, body, seconds, replies, order, on_tokens or (lambda index, reply: None))
        except (aiohttp.ClientError, OSError) as error:
            raise _Again(str(error) or type(error).__name__, is_begun=on_tokens is not None and any(reply.ids for reply in replies)) from error
        except (msgspec.DecodeError, KeyError, IndexError, TypeError, ValueError) as error:
            raise InfraError(f"the engine's answer cannot be read: {type(error).__name__}: {error!s:.200}") from error
        for reply in replies:
            if reply.versions:
                self._naming.add(url)
            elif reply.ids and url in self._naming:  # another server has taken the place of the one that did
                self._naming.discard(url)
                asserted = await self._published()
            complete(reply, order, self._policy, asserted)
        return replies

    async def _published(self) -> int:
        return 0 if self._version is None else await self._version()

    async def _stream(self, url: str, body: bytes, seconds: float, replies: list[Sampled], order: Order, on_tokens: OnTokens) -> None:
        """Read a reply as it comes, event by event or, from a server that was not asked to stream, at once."""
        limits = aiohttp.ClientTimeout(total=max(0.001, seconds), sock_connect=5.0)
        async with self._http().post(f"{url}/v1/completions", data=body, timeout=limits) as answer:
            if answer.status != 200:
                raise _refusal(answer.status, await answer.read(), {name.lower(): value for name, value in answer.headers.items()})
            if answer.content_type == "application/json":
                take(read_answer(await answer.read()), replies, order)
                return
            async for event in _events(answer.content):
                for index in take(event, replies, order):
                    on_tokens(index, replies[index])


class _Again(Exception):
    """No answer this time."""

    def __init__(self, trouble: str, *, seconds: float = 0.0, is_limit: bool = False, is_begun: bool = False) -> None:
        super().__init__(trouble)
        self.seconds, self.is_limit, self.is_begun = seconds, is_limit, is_begun


def _body(order: Order, model: str, *, is_streamed: bool) -> bytes:
    fields: dict[str, Any] = {
        "n": order.num_choices,
        "max_tokens": order.max_tokens,
        "temperature": order.temperature,
        "seed": order.seed,
        "logprobs": order.num_alternatives,
        "return_token_ids": True,
        **order.filters,
    }
    if model:
        fields["model"] = model
    if order.stop:
        fields["stop"] = order.stop
    if order.stop_ids:
        fields["stop_token_ids"] = order.stop_ids
    if order.request_id:
        fields["request_id"] = order.request_id
    if is_streamed:
        fields |= {"stream": True, "stream_options": {"include_usage": True}}
    # The prompt is by far the longest field: whoever knows its beginning from the last turn spells only what is new.
    return b'{"prompt":[%b],%b' % (order.spelled or spell(order.ids), msgspec.json.encode(fields)[1:])


async def _events(content: aiohttp.StreamReader) -> AsyncIterator[Answer]:
    """The values of server-sent events."""
    pending = b""
    async for chunk in content.iter_any():
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            if line.startswith(b"data:") and (data := line[5:].strip()) != b"[DONE]":
                event = read_answer(data)
                if event.error is not None:
                    raise _Again(f"the engine failed: {event.error!s:.200}", is_begun=True)
                yield event


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
