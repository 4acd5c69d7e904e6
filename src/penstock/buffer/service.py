"""The buffer as an asyncio service: waits for durability before it answers, for change while somebody polls, and for the disk after it failed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from penstock.buffer.core import Buffer, Pending
from penstock.buffer.intake_desk import IntakeDesk
from penstock.buffer.store import Store
from penstock.buffer.working import WorkDesk
from penstock.errors import ArchiveError, CorruptError, InputError, LimitError, PenstockError, StoreError
from penstock.ledger import BatchReport
from penstock.process.points import reach

log = logging.getLogger(__name__)

T = TypeVar("T")

_UNREADABLE = (CorruptError, ArchiveError)
"""What one record or file cannot give is nobody else's loss: the store goes on."""

LONGEST_WAIT_SECONDS = 60.0
"""A poll is answered after this long, whatever it asked for."""
LATE_SECONDS = 1.0
"""A look at the deadlines that is so much too late was kept from being made."""
QUIET_TURNS = 4
"""Turns of the event loop, of a few microseconds each, after which nobody is expected any more."""
ENOUGH_CAME = 128
"""Who came in the meantime are worth a commit of their own."""
MEND_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0)
"""Pauses between attempts to reopen a store that failed; the last one is repeated."""


def store_clock() -> Callable[[], float]:
    """Seconds since 1970 that never run backwards: the wall clock is read once, its jumps do not reach deadlines."""
    start = time.time() - time.monotonic()
    return lambda: start + time.monotonic()


class Line:
    """Those who wait for a commit, in the order of what they wait for.

    One of them watches; when its commit has come all that came with it are let go. So a commit wakes the event loop about once, however many wait.
    A client that goes away takes its place along, not the commit that others stand on.
    """

    def __init__(self, failed: Callable[[BaseException], Exception]) -> None:
        """`failed` is told what a commit failed with, and gives what those who wait are told."""
        self._failed = failed
        self._waiting: deque[tuple[Future[None], list[tuple[asyncio.Future[Any], Any]]]] = deque()
        self._after: list[Callable[[], None]] = []
        self._num_came = 0
        """Who ever waited."""

    def wait(self, commit: Future[None], *places: tuple[asyncio.Future[T], T | InputError]) -> None:
        """Resolve each of the futures to what stands beside it, a value or a refusal, when `commit` is done; or fail them as the commit did."""
        self._num_came += 1
        if self._waiting and self._waiting[-1][0] is commit:
            self._waiting[-1][1].extend(places)
            return
        self._waiting.append((commit, [*places]))
        if len(self._waiting) == 1:
            self._watch(asyncio.get_running_loop())

    def at_turn_end(self, call: Callable[[], None]) -> None:
        """Have `call` called once all that has come in by now was decided; while a commit is under way, once those who wait for it were let go and
        have come again, or will not. So what they bring next goes into one commit with what came meanwhile. Half as many commits cost less than the time in
        which the disk has nothing to do, and nobody then wants the interpreter while the writer does.
        """
        if self._waiting:
            self._after.append(call)
        else:
            asyncio.get_running_loop().call_soon(call)

    async def passed(self, commit: Future[None]) -> None:
        """Returns when `commit` is done. Raises what it failed with."""
        if not commit.done():
            place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.wait(commit, (place, None))
            await place
            return
        failure = commit.exception()
        if failure is not None:
            raise self._failed(failure)

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        self._waiting[0][0].add_done_callback(lambda _: _call_soon(loop, self._let_go, loop))

    def _let_go(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting and self._waiting[0][0].done():
            commit, places = self._waiting.popleft()
            failure = commit.exception()
            told = None if failure is None else self._failed(failure)
            reach("buffer.after_commit")
            for place, outcome in places:
                if not place.done():
                    _resolve(place, outcome if told is None else told)
        if self._waiting:
            self._watch(loop)
        if self._after:
            after, self._after = self._after, []
            # The replies are written in the next turn; those who get them come in later ones.
            loop.call_soon(self._call_when_quiet, loop, after, self._num_came, self._num_came, 0)

    def _call_when_quiet(self, loop: asyncio.AbstractEventLoop, calls: Sequence[Callable[[], None]], num_first: int, num_came: int, num_quiet: int) -> None:
        """Call `calls` once nobody came for `QUIET_TURNS`, or enough have. When this began `num_first` had come, and `num_came` by the last turn."""
        num_quiet = num_quiet + 1 if self._num_came == num_came else 0
        if num_quiet <= QUIET_TURNS and self._num_came - num_first < ENOUGH_CAME:
            loop.call_soon(self._call_when_quiet, loop, calls, num_first, self._num_came, num_quiet)
            return
        for call in calls:
            call()


def _resolve(place: asyncio.Future[Any], outcome: object) -> None:
    if isinstance(outcome, Exception):
        place.set_exception(outcome)
    else:
        place.set_result(outcome)


def _call_soon(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *args: object) -> None:
    """From the writer's thread; nobody waits any more once the loop is closed."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(call, *args)


class BufferService:
    """Verbs of `Buffer` for an event loop. Use as a context: `async with service.running():`."""

    def __init__(
        self,
        store: Store,
        *,
        expire_seconds: float,
        max_waiting: int,
        on_batch: Callable[[BatchReport], None] | None = None,
        now: Callable[[], float] | None = None,
    ) -> None:
        """`now` is the store's clock, `store_clock` if not given."""
        self.now = now or store_clock()
        self._line = Line(self._noticed)
        self.buffer = Buffer(store, self.now, on_batch=on_batch, at_turn_end=self._line.at_turn_end)
        # Loaded, it has begun every deadline anew.
        self._heard_at = self.now()
        self.work = WorkDesk(self.now)
        """Enrichment work in the hands of others."""
        self.intakes = IntakeDesk()
        """Reads what producers write."""
        self._expire_seconds = expire_seconds
        self._max_waiting = max_waiting
        self._waiting = 0
        self._changed: asyncio.Event | None = None
        """Somebody looks at it; None while nobody does."""
        self.when_loaded: list[Callable[[], None]] = []
        """Called when the ledgers were loaded anew after a failure, on another thread, before anything else is decided."""
        self._broken: StoreError | None = None
        self._mending: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Deadlines are acted on meanwhile; at the end everything submitted is made durable."""
        expiring = asyncio.create_task(self._expire_forever())
        try:
            yield
        finally:
            for task in (expiring, self._mending):
                if task is not None:
                    task.cancel()
            await self.intakes.close()
            await asyncio.to_thread(self.buffer.store.close)

    async def told(self, decide: Callable[[Buffer], Pending[T]]) -> T:
        """Decide, and give the reply once it is durable. Raises `StoreError` if it cannot be made so; then it never happened.

        A refusal waits as well: it may stand on a decision that a crash would undo.
        """
        try:
            pending = self.decided(decide)
        except InputError:
            await self.settled()
            raise
        return await self.durable(pending)

    def decided(self, decide: Callable[[Buffer], Pending[T]]) -> Pending[T]:
        """Decide now; many decisions share one sync if `durable` is awaited after the last. Whoever catches a refusal awaits `settled`."""
        self._check_whole()
        try:
            pending = decide(self.buffer)
        except _UNREADABLE:
            raise
        except StoreError as error:
            self._break(error)
            raise
        if pending.changed:
            self._wake()
        reach("buffer.before_commit")
        return pending

    async def durable(self, pending: Pending[T]) -> T:
        """The reply, once it may be told."""
        await self._line.passed(pending.durable)
        return pending.reply

    def follow(self, *places: tuple[asyncio.Future[T], T | InputError]) -> None:
        """Resolve futures to what was just decided, replies or refusals, once everything that stands on is durable. For those who cannot wait themselves."""
        self._line.wait(self.buffer.settled(), *places)

    async def settled(self) -> None:
        """Returns once everything decided so far is durable."""
        await self._line.passed(self.buffer.settled())

    async def looked(self, look: Callable[[Buffer], T]) -> T:
        """What a look at the buffer shows, or a note in it that need not be durable itself; told once what it stands on is durable."""
        self._check_whole()
        try:
            return look(self.buffer)
        except _UNREADABLE:
            raise
        except StoreError as error:
            self._break(error)
            raise
        finally:
            await self.settled()

    def _noticed(self, failure: BaseException) -> StoreError:
        """Take note that a commit has failed, and have the store opened again."""
        # Another error than that of the disk: decided, known to others by now, and refused afterwards. Only a new start from disk makes memory right again.
        error = failure if isinstance(failure, StoreError) else StoreError(f"the store refused a change that was decided: {failure}")
        self._break(error)
        return error

    @property
    def is_whole(self) -> bool:
        """False from the failure of the store until it was opened again."""
        return self._broken is None

    def _check_whole(self) -> None:
        if self._broken is not None:
            raise self._broken

    async def polled(self, decide: Callable[[Buffer], Pending[T]], enough: Callable[[T], bool], wait_seconds: float) -> T:
        """Decide again after every change until the reply is `enough` or the time is up; then give the last one."""
        return await self.repeated(lambda: self.told(decide), enough, wait_seconds)

    async def repeated(self, attempt: Callable[[], Awaitable[T]], enough: Callable[[T], bool], wait_seconds: float) -> T:
        """Try again after every change until what came of it is `enough` or the time is up; then give the last."""
        deadline = time.monotonic() + min(wait_seconds, LONGEST_WAIT_SECONDS)
        if self._waiting >= self._max_waiting:
            raise LimitError(f"{self._waiting} requests are waiting; try again later", http_status=503)
        self._waiting += 1
        try:
            while True:
                changed = self.next_change()
                value = await attempt()
                left = deadline - time.monotonic()
                if enough(value) or left <= 0:
                    return value
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), left)
        finally:
            self._waiting -= 1

    def next_change(self) -> asyncio.Event:
        """Set when something has changed for those who wait. Ask for it before looking whether to wait."""
        if self._changed is None:
            self._changed = asyncio.Event()
        return self._changed

    async def check(self) -> None:
        """A real durable write. Raises `StoreError` if there cannot be one."""
        self._check_whole()
        await self._line.passed(self.buffer.store.submit(()))

    def _wake(self) -> None:
        """Let everybody who polls look again."""
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    def _break(self, error: StoreError) -> None:
        """Stop answering until the store was reopened: memory is ahead of the disk."""
        if self._broken is None:
            log.error("the store failed, nothing is acknowledged until it is back: %s", error)
            self._broken = error
            self._mending = asyncio.get_running_loop().create_task(self._mend())

    async def _mend(self) -> None:
        attempt = 0
        while self._broken is not None:
            await asyncio.sleep(MEND_SECONDS[min(attempt, len(MEND_SECONDS) - 1)])
            attempt += 1
            try:
                await asyncio.to_thread(self._load_again)
            except StoreError as error:
                self._broken = error
            else:
                self._broken = None
                # Reopened, it has begun every deadline anew.
                self._heard_at = self.now()
                self._wake()
                log.warning("the store is back after %d attempts", attempt)

    def _load_again(self) -> None:
        self.buffer.reopen()
        for call in self.when_loaded:
            call()

    def catch_up(self) -> None:
        """To be called before deadlines are acted on, every `expire_seconds` or more often.

        If it was not, this process was stopped, or busy with one thing: nobody could be heard meanwhile, and that time counts for no deadline.
        """
        now = self.now()
        missed, self._heard_at = now - self._heard_at - self._expire_seconds, now
        if missed > LATE_SECONDS:
            log.warning("nobody could be heard for %.1f s; deadlines are later by that", missed)
            self.buffer.later_clocks(missed)
            self.work.later(missed)

    def _notice_a_failed_commit(self) -> None:
        """Raises what the newest commit failed with, in case all who waited for it are gone: nobody else would have the store opened again."""
        newest = self.buffer.settled()
        if newest.done():
            newest.result()

    async def _expire_forever(self) -> None:
        while True:
            await asyncio.sleep(self._expire_seconds)
            if self._broken is not None:
                continue
            try:
                self._notice_a_failed_commit()
                self.catch_up()
                for pending in self.buffer.expire():
                    log.warning("lost %s", ", ".join(session.worker for session in pending.reply))
                    self._wake()
                for torn in self.buffer.drop_torn():
                    log.error("dropped, since a record of theirs is damaged: %s", ", ".join(f"group {group.id}" for group in torn.reply))
                    self._wake()
                for work in self.work.expire():
                    log.warning("expired: work %s of %s", work.lease, work.consumer)
                    self._wake()
                for expired in self.buffer.expire_leases():
                    log.warning("expired: %s", ", ".join(f"lease {lease.lease} of {lease.consumer}" for lease in expired.reply))
                    self._wake()
            except PenstockError as error:
                self._break(error if isinstance(error, StoreError) else StoreError(str(error)))
