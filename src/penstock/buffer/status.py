"""How a run stands, for people, workers and monitors. Looks only."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from penstock import ledger as law
from penstock.buffer import api
from penstock.buffer.core import Buffer
from penstock.buffer.service import BufferService
from penstock.ledger import Ledger
from penstock.ledger.balance import uncounted, unfilled
from penstock.ledger.counts import Counts
from penstock.ledger.credits import capacity
from penstock.ledger.work import num_missing
from penstock.metrics import named, render_prometheus
from penstock.types import GroupRecord, GroupState, Purpose

COUNTED_AT_ONCE = 4096
"""Groups whose slots are counted before others get a turn: a few milliseconds."""


async def imbalance_in_turns(service: BufferService, run: str) -> int:
    """`ledger.imbalance` of a run that is being used: others get a turn while the slots of very many groups are counted."""
    ledger = await service.looked(lambda buffer: buffer.ledger(run))
    missing, group_ids = uncounted(ledger), list(ledger.groups)
    for start in range(0, len(group_ids), COUNTED_AT_ONCE):
        missing += unfilled(ledger, group_ids[start : start + COUNTED_AT_ONCE])
        await asyncio.sleep(0)
    return missing


def run_status(ledger: Ledger, imbalance: int) -> api.RunStatus:
    """The status of a run."""
    environments = {found.environment: _environment(ledger, found) for found in law.balance(ledger) if found.purpose is Purpose.TRAIN}
    return api.RunStatus(
        run=ledger.run.run,
        laws=ledger.laws,
        newest=ledger.versions[ledger.newest_version],
        live_version=max((version.version for version in ledger.versions.values() if version.live), default=-1),
        next_update=ledger.next_update,
        term=ledger.term,
        checkpoints=tuple(ledger.checkpoints[update] for update in sorted(ledger.checkpoints)),
        cursors=ledger.cursors,
        environments=environments,
        imbalance=imbalance,
    )


def ledger_reply(ledger: Ledger, imbalance: int) -> api.LedgerReply:
    """The account of everything that was ever issued."""
    balances = tuple(
        api.EnvironmentLedger(
            environment=found.environment,
            purpose=found.purpose,
            groups=found.groups,
            members=found.members,
            opened=found.opened,
            issued=found.issued,
        )
        for found in law.balance(ledger)
    )
    return api.LedgerReply(run=ledger.run.run, balances=balances, imbalance=imbalance)


def statistics(ledger: Ledger, now: float) -> api.Statistics:
    """How the run fares, from running counts and what is under way."""
    live: dict[tuple[str, Purpose], list[GroupRecord]] = {}
    for group in ledger.groups.values():
        live.setdefault((group.environment, group.purpose), []).append(group)
    return api.Statistics(
        run=ledger.run.run,
        environments=tuple(_fared(ledger, *kind, live.get(kind, []), now) for kind in sorted(ledger.counts)),
        sessions=len(ledger.sessions),
        work_missing=num_missing(ledger),
        newest_version=ledger.newest_version,
        next_update=ledger.next_update,
    )


def _fared(ledger: Ledger, environment: str, purpose: Purpose, live: Sequence[GroupRecord], now: float) -> api.EnvironmentStatistics:
    counts = ledger.counts_of(environment, purpose)
    dropped = _dropped(counts)
    opened = [group.opened_at for group in live if group.state is GroupState.OPEN]
    ready = [group.ready_at for group in live if group.state is GroupState.READY and group.ready_at is not None]
    return api.EnvironmentStatistics(
        environment=environment,
        purpose=purpose,
        opened=counts.opened,
        under_way=len(live),
        became_ready=counts.ready_groups,
        mean_ready_tokens=counts.mean_tokens,
        dropped=dropped,
        mean_dropped_longest=_mean_dropped_longest(counts),
        oldest_open_seconds=max(0.0, now - min(opened)) if opened else None,
        oldest_ready_seconds=max(0.0, now - min(ready)) if ready else None,
    )


def metrics_text(buffer: Buffer, imbalances: Mapping[str, int]) -> str:
    """Gauges for Prometheus of runs, each with its imbalance."""
    return "".join(render_prometheus(_gauges(buffer.ledger(run), imbalance), labels={"run": run}) for run, imbalance in imbalances.items())


def _gauges(ledger: Ledger, imbalance: int) -> dict[str, float]:
    values: dict[str, float] = {"ledger/imbalance": imbalance, "ledger/newest_version": ledger.newest_version}
    for found in law.balance(ledger):
        if found.purpose is Purpose.TRAIN:
            env = found.environment
            values[named("ledger/<env>/credit_tokens", env=env)] = capacity(ledger, env)
            values[named("ledger/<env>/held_tokens", env=env)] = ledger.counts_of(env, found.purpose).held_tokens
            longest = _mean_dropped_longest(ledger.counts_of(env, found.purpose))
            values |= {named("ledger/<env>/dropped_longest/<reason>", env=env, reason=reason): mean for reason, mean in longest.items()}
            values |= {named("ledger/<env>/groups/<state>", env=env, state=state): count for state, count in found.groups.items()}
            values |= {named("ledger/<env>/members/<state>", env=env, state=state): count for state, count in found.members.items()}
    return values


def _environment(ledger: Ledger, found: law.Balance) -> api.EnvironmentStatus:
    counts = ledger.counts_of(found.environment, found.purpose)
    return api.EnvironmentStatus(
        credit_tokens=capacity(ledger, found.environment),
        held_tokens=counts.held_tokens,
        mean_group_tokens=counts.mean_tokens,
        groups=found.groups,
        members=found.members,
        mean_dropped_longest=_mean_dropped_longest(counts),
    )


def _dropped(counts: Counts) -> dict[str, int]:
    """Dropped groups by reason."""
    return {str(reason): count for (state, reason), count in sorted(counts.groups.items(), key=str) if state is GroupState.DROPPED and count}


def _mean_dropped_longest(counts: Counts) -> dict[str, float]:
    return {reason: counts.dropped_longest[reason] / count for reason, count in _dropped(counts).items()}
