"""How a run stands, for people, workers and monitors. Looks only."""

from __future__ import annotations

from penstock import ledger as law
from penstock.buffer import api
from penstock.buffer.core import Buffer
from penstock.ledger import Ledger
from penstock.ledger.credits import capacity
from penstock.types import Purpose


def run_status(ledger: Ledger) -> api.RunStatus:
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
        imbalance=law.imbalance(ledger),
    )


def ledger_reply(ledger: Ledger) -> api.LedgerReply:
    """The account of everything that was ever issued."""
    balances = tuple(
        {"environment": found.environment, "purpose": found.purpose.value, "groups": found.groups, "members": found.members} for found in law.balance(ledger)
    )
    return api.LedgerReply(balances=balances, imbalance=law.imbalance(ledger))


def metrics_text(buffer: Buffer) -> str:
    """Gauges for Prometheus."""
    lines = ["# TYPE penstock_ledger_groups gauge", "# TYPE penstock_credit_held_tokens gauge", "# TYPE penstock_newest_version gauge"]
    for run in buffer.runs():
        ledger = buffer.ledger(run)
        lines.append(f'penstock_newest_version{{run="{run}"}} {ledger.newest_version}')
        for found in law.balance(ledger):
            labels = f'run="{run}",environment="{found.environment}",purpose="{found.purpose}"'
            lines += [f'penstock_ledger_groups{{{labels},state="{state}"}} {count}' for state, count in found.groups.items()]
            held = ledger.counts_of(found.environment, found.purpose).held_tokens
            lines.append(f"penstock_credit_held_tokens{{{labels}}} {held}")
    return "\n".join(lines) + "\n"


def _environment(ledger: Ledger, found: law.Balance) -> api.EnvironmentStatus:
    counts = ledger.counts_of(found.environment, found.purpose)
    return api.EnvironmentStatus(
        credit_tokens=capacity(ledger, found.environment),
        held_tokens=counts.held_tokens,
        mean_group_tokens=counts.mean_tokens,
        groups=found.groups,
        members=found.members,
    )
