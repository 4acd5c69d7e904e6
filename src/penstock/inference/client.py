"""The client of an inference server: what rollout workers and the learner call.

Sampling changes nothing on the server, so a request that got no answer is sent again: on a lost connection, on 429, 502, 503 and 504, after the wait that the
server names or a growing one, until the call's deadline. With a seed the repeated reply is the same. Other refusals are raised at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import TracebackType
from typing import Any, Protocol, TypeVar

import aiohttp
import msgspec
import numpy as np

from penstock.clock import Clock, SystemClock
from penstock.errors import ConflictError, FencedError, InfraError, InvalidError, LimitError, PenstockError, WeightsError
from penstock.inference.bodies import Continuation, PromptTexts, completion_body
from penstock.process.credentials import authorization
from penstock.types import (
    Float32Array,
    InferenceMetadata,
    Int32Array,
    SamplerFacts,
    Usage,
    VersionRun,
    WeightManifest,
)
from penstock.types.frozen import quickly_made
from penstock.wire.connections import Answered, Wire

__all__ = ["Continuation", "InferenceClient", "NoAnswer", "Placing", "PromptTexts", "Reply", "Sampler", "ServedWeights", "completion_body", "read_reply"]

FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.1, 5.0
_COMPLETIONS = "/v1/completions"

T = TypeVar("T")


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reply:
    """One sampled reply."""

    ids: Int32Array
    logprobs: Float32Array
    """One per token, after temperature."""
    versions: tuple[VersionRun, ...]
    text: str
    metadata: InferenceMetadata
    """Finish reason, usage, how it was sampled."""


class NoAnswer(InfraError):
    """A server gave no answer this time, or nothing that can be read. Another time, or another server, may."""

    def __init__(self, trouble: str, *, is_full: bool = False, is_lost: bool = False, named_seconds: float = 0.0) -> None:
        super().__init__(trouble)
        self.is_full = is_full
        """It is well and has no room (429)."""
        self.is_lost = is_lost
        """There is nobody, or nobody who is ready: a lost connection, 502, 503, 504."""
        self.named_seconds = named_seconds
        """How long it asks to be left alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedWeights:
    """What a server samples with."""

    policy: str
    version: int
    digest: str
    newest_version: int
    """What it was told is newest; the same as `version` unless a push failed."""


class Sampler(Protocol):
    """Whoever continues tokens: `InferenceClient`, several of them, or an engine in this process."""

    async def complete(self, wanted: Continuation, *, deadline_seconds: float | None = None) -> Reply:
        """See `InferenceClient.complete`."""


class Placing(Protocol):
    """Whoever chooses which of several servers a request goes to."""

    async def __call__(self, call: Callable[[int, float], Awaitable[T]], *, affinity: str | None, deadline_seconds: float) -> T:
        """What `call` gives, called with the number of a server and the seconds that are left, and again with another when it raises `NoAnswer`.

        Requests with the same `affinity` go to the same server while it answers. Raises `InfraError` if there is no answer by the deadline, and at once
        whatever else `call` raises.
        """


class InferenceClient:
    """Talks to one server. Use it as an async context manager, from one event loop."""

    def __init__(self, base_url: str, *, token: str | None = None, clock: Clock | None = None, deadline_seconds: float = 600.0) -> None:
        """`base_url` without `/v1`. `deadline_seconds` bounds every call, its retries included, unless the call names another."""
        self._base_url = base_url.rstrip("/")
        self._headers = {"Content-Type": "application/json"} | authorization(token)
        # Most of what is asked are completions, thousands a second: over connections that cost little where they can do it.
        bearer = self._headers.get("Authorization", "").removeprefix("Bearer ") or None
        self._wire = Wire(self._base_url, token=bearer) if self._base_url.startswith("http://") else None
        self._clock = clock or SystemClock()
        self._deadline_seconds = deadline_seconds
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> InferenceClient:
        # The number of requests under way is for the server to bound, not for the connection pool.
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._wire is not None:
            self._wire.close()
        if self._session is not None:
            await self._session.close()

    async def complete(self, wanted: Continuation, *, deadline_seconds: float | None = None) -> Reply:
        """Sample one reply. Here is one server, so that nothing depends on the affinity.

        Raises `InvalidError` if the server refuses the request, `InfraError` if there is no answer within the deadline.
        """
        body = completion_body(wanted)
        return await self._again("POST", _COMPLETIONS, deadline_seconds, lambda seconds: self.reply_once(body, deadline_seconds=seconds))

    async def reply_once(self, body: bytes, *, deadline_seconds: float) -> Reply:
        """As `complete`, for a body that `completion_body` has made, and asks once.

        Raises `NoAnswer` where `complete` would ask again, and if the answer cannot be read.
        """
        answer = await self._once("POST", _COMPLETIONS, body, deadline_seconds)
        try:
            return read_reply(answer)
        except (msgspec.DecodeError, UnicodeDecodeError, IndexError, TypeError, ValueError, OverflowError) as error:
            raise NoAnswer(f"the answer of {self._base_url} cannot be read: {type(error).__name__}: {error!s:.200}") from error

    async def served(self, *, deadline_seconds: float = 10.0) -> ServedWeights:
        """What the server samples with now."""
        return _served(await self._call("GET", "/v1/weights", None, deadline_seconds))

    async def push(self, manifest: WeightManifest, *, term: int | None = None, deadline_seconds: float = 60.0) -> ServedWeights:
        """Tell the server that these are the newest weights; it loads them from its weights directory and says what it serves then.

        May be repeated. Raises `WeightsError` if the server refuses them (it goes on with the old ones), `FencedError` for an older term,
        `ConflictError` if the version is known there with another digest, `InfraError` if there is no answer within the deadline.
        """
        body = {"policy": manifest.policy, "version": manifest.version, "digest": manifest.digest} | ({} if term is None else {"term": term})
        return _served(await self._call("POST", "/v1/weights", body, deadline_seconds))

    async def abort(self, ids: Collection[str] | None = None, *, deadline_seconds: float = 10.0) -> int:
        """End these requests (None: all); each answers whoever waits for it with what it has. Returns how many replies were ended."""
        answer = await self._call("POST", "/abort", {} if ids is None else {"ids": sorted(ids)}, deadline_seconds)
        return int(answer["aborted"])

    async def is_ready(self) -> bool:
        """Whether the server answers and serves the newest weights that it was told of. Asks once."""
        try:
            answered = await self._send("GET", "/readyz", None, 5.0)
        except (aiohttp.ClientError, OSError):
            return False
        return answered.status == 200

    async def _call(self, method: str, path: str, body: Mapping[str, Any] | None, deadline_seconds: float | None) -> Any:
        data = None if body is None else msgspec.json.encode(body)
        return msgspec.json.decode(await self._again(method, path, deadline_seconds, lambda seconds: self._once(method, path, data, seconds)))

    async def _again(self, method: str, path: str, deadline_seconds: float | None, ask: Callable[[float], Awaitable[T]]) -> T:
        """Ask until there is an answer, or no time is left."""
        start = self._clock.monotonic()
        deadline = start + (self._deadline_seconds if deadline_seconds is None else deadline_seconds)
        wait_seconds = FIRST_WAIT_SECONDS
        while True:
            try:
                return await ask(deadline - self._clock.monotonic())
            except NoAnswer as trouble:
                if not (trouble.is_full or trouble.is_lost):
                    raise
                wait_seconds = max(wait_seconds, trouble.named_seconds)
                if self._clock.monotonic() + wait_seconds >= deadline:
                    seconds = self._clock.monotonic() - start
                    raise InfraError(f"{method} {path} on {self._base_url} has no answer after {seconds:.1f} s: {trouble}") from None
            await self._clock.sleep(wait_seconds)
            wait_seconds = min(2 * wait_seconds, LONGEST_WAIT_SECONDS)

    async def _once(self, method: str, path: str, body: bytes | None, seconds: float) -> bytes:
        """What the server says, asked once. Raises `NoAnswer`, or the error that a refusal was there."""
        try:
            answered = await self._send(method, path, body, max(0.001, seconds))
        except (aiohttp.ClientError, OSError) as error:  # a timeout is an OSError
            raise NoAnswer(str(error) or type(error).__name__, is_lost=True) from error
        status = answered.status
        if status == 200:
            return answered.body
        if status in (429, 502, 503, 504):
            named_seconds = _seconds(answered.headers.get("retry-after"))
            raise NoAnswer(f"status {status}", is_full=status == 429, is_lost=status != 429, named_seconds=named_seconds)
        if status >= 500 and path == _COMPLETIONS:
            raise NoAnswer(f"{path} on {self._base_url} failed: {_refusal(status, answered.body, path)}")
        raise _refusal(status, answered.body, path)

    def _send(self, method: str, path: str, body: bytes | None, seconds: float) -> Awaitable[Answered]:
        if path == _COMPLETIONS and body is not None and self._wire is not None:
            return self._wire.post(path, body, seconds=seconds)
        return self._send_fully(method, path, body, seconds)

    async def _send_fully(self, method: str, path: str, body: bytes | None, seconds: float) -> Answered:
        """As `Wire.post`, with a full client."""
        assert self._session is not None, "use the client as an async context manager"
        timeout = aiohttp.ClientTimeout(total=seconds)
        async with self._session.request(method, self._base_url + path, data=body, headers=self._headers, timeout=timeout) as answer:
            return Answered(status=answer.status, raw_headers=answer.raw_headers, body=await answer.read())


def _seconds(retry_after: str | None) -> float:
    """What `Retry-After` asks for, if it is a number."""
    return float(retry_after) if retry_after is not None and retry_after.strip().isdecimal() else 0.0


class _Logprobs(msgspec.Struct):
    token_logprobs: list[float]


class _Choice(msgspec.Struct):
    token_ids: list[int]
    logprobs: _Logprobs
    versions: tuple[VersionRun, ...]
    text: str
    finish_reason: str


class _CachedTokens(msgspec.Struct):
    cached_tokens: int


class _Cost(msgspec.Struct):
    prompt_tokens: int
    prompt_tokens_details: _CachedTokens
    completion_tokens: int
    seconds: float


class _Completion(msgspec.Struct):
    """What is read of an answer. Fields that it does not name are passed over."""

    choices: list[_Choice]
    usage: _Cost
    sampler: msgspec.Raw


_COMPLETION = msgspec.json.Decoder(_Completion)
_SAMPLER = msgspec.json.Decoder(SamplerFacts)


@lru_cache(maxsize=256)
def _sampler_facts(spelled: bytes) -> SamplerFacts:
    """Read once: all replies of a server share them, and whoever keeps many replies keeps them once."""
    return _SAMPLER.decode(spelled)


def read_reply(answer: bytes) -> Reply:
    """The first choice of a completion that was asked for with token ids and logprobs. Raises `ValueError` or `IndexError` if there is none."""
    read = _COMPLETION.decode(answer)
    choice, cost = read.choices[0], read.usage
    usage = Usage(
        prompt_tokens=cost.prompt_tokens,
        cached_tokens=cost.prompt_tokens_details.cached_tokens,
        sampled_tokens=cost.completion_tokens,
        seconds=cost.seconds,
    )
    ids = np.fromiter(choice.token_ids, np.int32, len(choice.token_ids))
    logprobs = np.fromiter(choice.logprobs.token_logprobs, np.float32, len(choice.logprobs.token_logprobs))
    # Closed for writing, so that whoever records them need not copy them.
    ids.setflags(write=False)
    logprobs.setflags(write=False)
    return Reply(
        ids=ids,
        logprobs=logprobs,
        versions=choice.versions,
        text=choice.text,
        metadata=InferenceMetadata(sampler=_sampler_facts(bytes(read.sampler)), usage=usage, finish_reason=choice.finish_reason),
    )


def _served(answer: Mapping[str, Any]) -> ServedWeights:
    return ServedWeights(**answer)


def _refusal(status: int, answer: bytes, path: str) -> PenstockError:
    """What a server said no to, as the error it was there."""
    try:
        told = msgspec.json.decode(answer)["error"]
        code, message = told["code"], told["message"]
    except (msgspec.DecodeError, KeyError, TypeError):
        return InfraError(f"{path} answered {status} without a word of ours")
    kinds: dict[str, type[PenstockError]] = {"weights": WeightsError, "fenced": FencedError, "conflict": ConflictError, "limit": LimitError}
    kind = kinds.get(code, InvalidError if 400 <= status < 500 else InfraError)
    return kind(message)
