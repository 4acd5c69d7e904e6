"""One session: its events applied in order, its requests answered. Knows nothing of HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.chat import ChatTemplate
from penstock.clock import Clock, SystemClock
from penstock.errors import BadRequestError, ConflictError, InvalidError, LimitError, PenstockError, UnknownError
from penstock.gateway.config import Limits
from penstock.gateway.continuing import sample_whole
from penstock.gateway.conversation import Conversation, Point, Prompt
from penstock.gateway.engine import ABORT_SECONDS
from penstock.gateway.events import Ended, Event, Opened, Replied, Rewarded, Stored
from penstock.gateway.journal import Journal, Note
from penstock.gateway.reading import Reader
from penstock.gateway.replies import Answer, choice_of
from penstock.gateway.requests import Ask
from penstock.gateway.rollouts import Rewards
from penstock.gateway.sampling import Engine, OnTokens, Order, Sampled
from penstock.gateway.spelling import Speller
from penstock.gateway.watching import BreakingOff, Gone
from penstock.process.points import reach
from penstock.types import Purpose
from penstock.wire import digest


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Surroundings:
    """What all sessions of a gateway share."""

    template: ChatTemplate
    engine: Engine
    journal: Journal
    limits: Limits = field(default_factory=Limits)
    max_tokens: int = 1024
    """Of a reply, where nobody names a limit."""
    clock: Clock = field(default_factory=SystemClock)
    count: Callable[[str, int], None] = lambda name, count: None
    """Told of what happens, by name."""


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


class Session:
    """State is what its events say. Belongs to one event loop; requests may overlap, events are one after another."""

    def __init__(self, around: Surroundings, opened: Opened) -> None:
        self._around = around
        self.opened = opened
        self.conversation = Conversation(around.template)
        self.reader = Reader()
        """Of its requests."""
        self.rewards = Rewards()
        self.ended: Ended | None = None
        self.stored: Stored | None = None
        self.touched = around.clock.monotonic()
        self.num_requests = 0
        """Under way."""
        self.num_forks = 0
        self.limit_hit = ""
        """Name of a limit because of which a request was refused."""
        self.is_stale = False
        """Somebody else has appended to its journal: what is here is not the session any more."""
        self._num_events = 0
        self._answers: dict[str, list[Point]] = {}
        """Replies by the id that clients know them by."""
        self._by_request: dict[str, tuple[str, int]] = {}
        """Newest answer to a request, by its digest: its id and when it was."""
        self._undelivered: set[str] = set()
        """Requests whose client did not get the answer, as far as we know."""
        self._keyed: dict[str, asyncio.Future[Answer]] = {}
        self._num_answers: dict[str, int] = {}
        self._under_way: dict[str, int] = {}
        """Requests by digest: answered, and being answered."""
        self._appending = asyncio.Lock()
        self._speller = Speller()

    # Events

    @classmethod
    def replayed(cls, around: Surroundings, events: Sequence[Event]) -> Session:
        """A session as its journal has it."""
        if not events or events[0].opened is None:
            raise UnknownError("there is no such session")
        session = cls(around, events[0].opened)
        for event in events:
            if event.replied is not None:
                event.replied.close()
            session._apply(event)
        # Who got what is not in the journal: whoever comes back with a request that was answered last is given that answer.
        session._undelivered = {request for request, (id, _) in session._by_request.items() if not any(point.is_continued for point in session._answers[id])}
        return session

    async def tell(
        self,
        *,
        replied: Replied | None = None,
        rewarded: Rewarded | None = None,
        ended: Ended | None = None,
        stored: Stored | None = None,
        note: Note | None = None,
    ) -> None:
        """Keep what happens, a reward before the end, with what it means for the list of sessions; then let it happen.

        Raises `ConflictError` if the session has ended, or if somebody else serves it, too; `InvalidError` if its rewards would be more than a number can be.
        """
        async with self._appending:
            if self.ended is not None and stored is None:
                raise ConflictError(f"the session has ended ({self.ended.status})")
            if rewarded is not None:
                self.rewards.after(rewarded)  # what is kept could not be taken back
            at = self._now()
            first = [] if rewarded is None else [Event(at=at, rewarded=rewarded)]
            others = [] if replied is None and ended is None and stored is None else [Event(at=at, replied=replied, ended=ended, stored=stored)]
            await self.append([*first, *others], note)

    async def append(self, events: Sequence[Event], note: Note | None = None) -> None:
        """See `tell`, which is the one to call; this is for the first event."""
        try:
            await self._around.journal.append(self.opened.session, self._num_events, events, note)
        except ConflictError:
            self.is_stale = True
            raise
        for event in events:
            self._apply(event)

    def _apply(self, event: Event) -> None:
        self._num_events += 1
        if event.replied is not None:
            id = event.replied.id
            self.num_forks += self._is_fork(event.replied)
            self._answers[id] = self.conversation.apply(event.replied, event.at)
            self._num_answers[event.replied.request] = 1 + self._num_answers.get(event.replied.request, 0)
            if not event.replied.gone:
                self._by_request[event.replied.request] = (id, event.at)
        elif event.rewarded is not None:
            self.rewards.apply(event.rewarded)
        elif event.ended is not None:
            self.ended = event.ended
        elif event.stored is not None:
            self.stored = event.stored

    def _is_fork(self, replied: Replied) -> bool:
        """Whether a prompt goes on from elsewhere than the end of a reply."""
        if replied.parent is None or not replied.pieces:
            return False
        base = self.conversation.points[replied.parent]
        return base.choice is None or replied.keep < base.num_tokens

    # Requests

    async def complete(self, ask: Ask, *, id: str, gone: Gone, on_tokens: OnTokens | None = None) -> Answer:
        """Answer a request under the name `id`, or give the answer that its client did not get before.

        When `gone` is set the client has left: the engine is told to stop, and what it had sampled is recorded as abandoned. Raises `BadRequestError` for what
        is refused, `ConflictError` after the end, `InfraError` or `LimitError` if the engine does not answer.
        """
        self.touched = self._around.clock.monotonic()
        self._check(ask)
        known = self._known_answer(ask)
        if known is not None:
            self._around.count("redelivered", 1)
            return known
        if ask.is_keyed and ask.digest in self._keyed:
            return await asyncio.shield(self._keyed[ask.digest])
        if self.num_requests >= self._around.limits.max_requests:
            raise LimitError(f"the session has {self.num_requests} requests under way; that is the most")
        self.num_requests += 1
        self._under_way[ask.digest] = 1 + self._under_way.get(ask.digest, 0)
        try:
            answering = self._sampled(ask, id, gone, on_tokens)
            return await (self._promised(ask, answering) if ask.is_keyed else answering)
        finally:
            self.num_requests -= 1
            if self._under_way[ask.digest] > 1:
                self._under_way[ask.digest] -= 1
            else:
                del self._under_way[ask.digest]
            self.touched = self._around.clock.monotonic()

    async def _promised(self, ask: Ask, answering: Coroutine[Any, Any, Answer]) -> Answer:
        """The answer to a request that has a key, told also to those who ask with the same key meanwhile."""
        promise = self._keyed[ask.digest] = asyncio.get_running_loop().create_future()
        promise.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            answer = await answering
            promise.set_result(answer)
            return answer
        except BaseException as error:
            promise.set_exception(error if isinstance(error, PenstockError) else LimitError("the same request was given up by another client: ask again"))
            raise
        finally:
            del self._keyed[ask.digest]

    def delivered(self, ask: Ask) -> None:
        """The client has the answer."""
        self._undelivered.discard(ask.digest)

    def reply(self, turn: str | int, choice: int = 0) -> int:
        """The point of a reply, by its completion id or by its number among the answers. Raises `UnknownError`."""
        ids = list(self._answers)
        id = turn if isinstance(turn, str) else ids[turn] if 0 <= turn < len(ids) else None
        points = [] if id is None else self._answers.get(id, [])
        if not 0 <= choice < len(points):
            raise UnknownError(f"the session has no reply {turn!r:.80} with a choice {choice}; it has {len(ids)} answers")
        return points[choice].number

    def rewards_of_turns(self) -> dict[str, float]:
        """By completion id; a choice but the first has its number behind it, as in `chatcmpl-1#2`."""
        given = self.rewards.by_reply
        return {
            f"{id}#{choice}" if choice else id: given[point.number].value
            for id, points in self._answers.items()
            for choice, point in enumerate(points)
            if point.number in given
        }

    @property
    def num_answers(self) -> int:
        """Requests that were answered."""
        return len(self._answers)

    def _check(self, ask: Ask) -> None:
        limits, manner = self._around.limits, self.opened.manner
        if self.ended is not None:
            raise ConflictError(f"the session has ended ({self.ended.status})")
        if ask.num_choices > limits.max_choices:
            raise BadRequestError(f"n must be at most {limits.max_choices}, got {ask.num_choices}", "n")
        if ask.filters and self.opened.slot.purpose is Purpose.TRAIN and not manner.allow_filters:
            name = next(iter(ask.filters))
            raise BadRequestError(
                f"{name} bends the sampling away from the policy, so its tokens could not be trained on: leave it out, "
                "or open the session with allow_filters: true (stored, not trained on) or purpose: eval",
                name,
            )
        self._check_held("max_session_tokens", self.conversation.num_tokens, limits.max_session_tokens)
        self._check_held("max_turns", self.num_answers, limits.max_turns)

    def _check_held(self, name: str, value: int, most: int) -> None:
        if value >= most:
            self.limit_hit = name
            raise BadRequestError(f"{name}: the session is at {value}, the most is {most}: end it", "messages")

    def _known_answer(self, ask: Ask) -> Answer | None:
        found = self._by_request.get(ask.digest)
        if found is None or not (ask.is_keyed or ask.is_retry or ask.digest in self._undelivered):
            return None
        id, at = found
        return self._answer(id, ask, at)

    def _answer(self, id: str, ask: Ask, at: int, sampled: Sequence[Sampled] = ()) -> Answer:
        choices = tuple([point.choice for point in self._answers[id] if point.choice is not None])
        return Answer(id=id, model=ask.model, created=at // 1000, choices=choices, alternatives=tuple([reply.alternatives for reply in sampled]))

    async def _sampled(self, ask: Ask, id: str, gone: Gone, on_tokens: OnTokens | None) -> Answer:
        try:
            prompt = self.conversation.prompt(ask.messages, ask.tools)
        except InvalidError as error:
            raise BadRequestError(str(error), "messages") from None
        order = self._order(ask, prompt, id)
        replies, is_gone = await self._unless_gone(order, gone, on_tokens)
        template = self._around.template
        choices = tuple([choice_of(reply, index, ask, template, id=id) for index, reply in enumerate(replies) if reply.ids])
        if not choices:
            self._around.count("clients_gone", 1)
            raise ClientGone
        replied = Replied(
            id=id,
            request=ask.digest,
            tools=prompt.tools,
            parent=prompt.parent,
            shared=prompt.shared,
            keep=prompt.keep,
            messages=prompt.messages,
            pieces=prompt.pieces,
            choices=choices,
            sampler=next(reply.sampler for reply in replies if reply.ids),
            gone=is_gone,
        )
        reach("gateway.before_journal")
        await self.tell(replied=replied)
        reach("gateway.after_journal")
        self._around.count("turns", 1)
        self._around.count("tokens_sampled", sum([len(choice.ids) for choice in choices]))
        if is_gone:
            self._around.count("clients_gone", 1)
            raise ClientGone
        self._undelivered.add(ask.digest)
        return self._answer(id, ask, self._by_request[ask.digest][1], replies)

    async def _unless_gone(self, order: Order, gone: Gone, on_tokens: OnTokens | None) -> tuple[list[Sampled], bool]:
        """The replies, and whether they were broken off because the client has left."""
        around = self._around
        breaking = BreakingOff(lambda: around.engine.abort(order.request_id), seconds=2 * ABORT_SECONDS)
        gone.then(breaking.begin)
        replies: list[Sampled] = []
        try:
            replies = await sample_whole(
                around.engine, order, deadline_seconds=around.limits.reply_seconds, clock=around.clock, is_gone=gone.is_set, on_tokens=on_tokens
            )
        except asyncio.CancelledError:
            if not breaking.has_given_up():
                raise
        finally:
            gone.then(None)
            if gone.is_set():
                await breaking.end()
        # A reply that is complete waits for its client, who may come back.
        return replies, gone.is_set() and any(reply.finish == "abort" for reply in replies)

    def _order(self, ask: Ask, prompt: Prompt, id: str) -> Order:
        manner = self.opened.manner
        # The same request after a restart samples the same; the same request again, or at once, does not.
        attempt = f"{self._num_answers.get(ask.digest, 0)} {self._under_way[ask.digest]}"
        seed = int(digest(f"{self.opened.seed} {ask.digest} {attempt}".encode())[:16], 16) >> 1
        return Order(
            ids=prompt.ids,
            num_choices=ask.num_choices,
            max_tokens=ask.max_tokens or manner.max_tokens or self._around.max_tokens,
            temperature=ask.temperature if manner.temperature is None else manner.temperature,
            seed=seed if ask.seed is None else ask.seed,
            stop=ask.stop,
            stop_ids=self._around.template.eos_ids,
            num_alternatives=ask.num_alternatives,
            filters=ask.filters,
            affinity=self.opened.session,
            request_id=f"gateway-{id}",
            spelled=self._speller.spell(prompt.ids, prompt.parts),
        )

    def _now(self) -> int:
        return int(self._around.clock.now() * 1000)
