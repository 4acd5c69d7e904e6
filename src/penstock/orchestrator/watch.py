"""Watches a run: tells progress from standstill, and says who waits for what before anybody has to ask."""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock.buffer.api import RunStatus
from penstock.buffer.client import BufferClient
from penstock.clock import Clock
from penstock.errors import ProcessError, StoreError
from penstock.metrics import Last, Metrics, Record, named
from penstock.orchestrator.renewals import SILENT_SECONDS, Renewals
from penstock.orchestrator.sections import RunSection
from penstock.orchestrator.stalls import explain_stall
from penstock.process.points import reach
from penstock.process.supervisor import Supervisor

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
SAY_SECONDS = 10.0
"""How often progress is told."""


class Watch:
    """Looks at the buffer every second.

    takes: the status of the run      waits for: nothing; a buffer that does not answer is a fact like others
    gives: progress, metrics          ends: with `ProcessError` after `run.give_up_seconds` without a new update

    A learner that hangs is killed, so that it is started again.
    """

    def __init__(self, section: RunSection, children: Supervisor, buffer: BufferClient, metrics: Metrics, clock: Clock) -> None:
        self._section, self._children, self._buffer, self._metrics, self._clock = section, children, buffer, metrics, clock
        self.updates_done = -1
        self._progress_at = self._said_at = self._warned_at = clock.monotonic()
        self._renewals = Renewals()

    async def work(self, on_status: Callable[[RunStatus], None]) -> None:
        """Watch for as long as the run lasts; `on_status` gets what was seen, every time."""
        while True:
            status = await self._look()
            if status is not None:
                self._note(status)
                on_status(status)
            self._check_learner(status)
            self._check_stall(status)
            reach("orchestrator.running")
            await self._clock.sleep(POLL_SECONDS)

    async def _look(self) -> RunStatus | None:
        try:
            return await self._buffer.status()
        except StoreError:
            return None

    def _note(self, status: RunStatus) -> None:
        now = self._clock.monotonic()
        if status.next_update <= self.updates_done:
            return
        self.updates_done = status.next_update
        self._progress_at = self._warned_at = now
        self._children.progress()
        restarts = [Last(named("process/<part>/restarts", part=part.name), part.restarts) for part in self._children.status() if part.restarts]
        self._metrics.emit(status.next_update, *ledger_records(status), *restarts)
        if now - self._said_at >= SAY_SECONDS:
            self._said_at = now
            log.info("%d of %d updates done, version %d is the newest", status.next_update, self._section.updates, status.newest.version)

    def _check_learner(self, status: RunStatus | None) -> None:
        """Kill a learner that hangs. Its next life goes on from the same plans, as after any death."""
        now = self._clock.monotonic()
        if status is None:
            self._renewals.not_seen(now)
            return
        process = next((part.process for part in self._children.status() if part.name == "learner"), None)
        if self._renewals.is_hung(process, None if status.term is None else status.term.expires_at, now):
            self._children.kill("learner", f"its term was not renewed for {SILENT_SECONDS:g} s")

    def _check_stall(self, status: RunStatus | None) -> None:
        now = self._clock.monotonic()
        still_seconds = now - self._progress_at
        if still_seconds >= self._section.give_up_seconds:
            raise ProcessError(f"no new update for {still_seconds:.0f} s: {explain_stall(status, self._children.status())}")
        if now - self._warned_at >= self._section.stall_seconds:
            self._warned_at = now
            log.warning("no new update for %.0f s: %s", still_seconds, explain_stall(status, self._children.status()))


def ledger_records(status: RunStatus) -> list[Record]:
    """The ledger as metrics."""
    records: list[Record] = [Last("ledger/imbalance", status.imbalance)]
    totals: dict[str, int] = {}
    for name, found in status.environments.items():
        records.append(Last(named("ledger/<env>/credit_tokens", env=name), found.credit_tokens))
        records.append(Last(named("ledger/<env>/held_tokens", env=name), found.held_tokens))
        for state, count in found.groups.items():
            kind, _, reason = state.removesuffix(")").partition("(")
            totals[kind] = totals.get(kind, 0) + count
            if reason:
                records.append(Last(named("ledger/<env>/dropped/<reason>", env=name, reason=reason), count))
        for reason, longest in found.mean_dropped_longest.items():
            records.append(Last(named("ledger/<env>/dropped_longest/<reason>", env=name, reason=reason), longest))
    return [*records, *(Last(named("ledger/<state>", state=state), count) for state, count in totals.items())]
