"""The laws: what may happen to groups, members, plans and versions, as pure functions.

Each rule looks at a `Ledger` and a request and gives a `Decision`: what to answer, and which records make it true. Nothing is changed
by deciding. The caller makes the records durable and then known (`Ledger.apply`); a rule that raises has changed nothing at all.

    decision = accept(ledger, past, rollout, payload, now)
    ledger.apply(decision.records)          # the next decision stands on this one
    await store.submit(decision.records)    # only now may anybody be told
    return decision.reply

Who calls what: workers `open_session, beat, open_group, claim, accept, release`; scorers `annotate`; the learner `take_term, renew_term, cut,
record, publish, keep`; outside consumers `take_lease, renew_lease, settle_lease, release_lease`; the clock `expire, expire_leases, drop_torn`. `balance`
says whether everything is still accounted for.
"""

from penstock.ledger.annotations import Annotated, annotate
from penstock.ledger.balance import Balance, balance, imbalance, recount
from penstock.ledger.book import Decision, Ledger, Past
from penstock.ledger.capacity import fills_a_pool, make_room
from penstock.ledger.cut import Wait, cut
from penstock.ledger.groups import Opened, drop_torn, open_group, open_run
from penstock.ledger.leases import expire_leases, find_lease, release_lease, renew_lease, settle_lease, take_lease
from penstock.ledger.pools import BatchReport, EnvironmentReport, batch_report
from penstock.ledger.slots import Slot, beat, claim, expire, later_clocks, open_session, release, restart_clocks
from penstock.ledger.states import GROUP_MOVES, MEMBER_MOVES
from penstock.ledger.terms import Resume, renew_term, take_term
from penstock.ledger.updates import Recorded, fork, keep, publish, record, retire
from penstock.ledger.writes import Accepted, accept, accept_all

__all__ = [
    "GROUP_MOVES",
    "MEMBER_MOVES",
    "Accepted",
    "Annotated",
    "Balance",
    "BatchReport",
    "Decision",
    "EnvironmentReport",
    "Ledger",
    "Opened",
    "Past",
    "Recorded",
    "Resume",
    "Slot",
    "Wait",
    "accept",
    "accept_all",
    "annotate",
    "balance",
    "batch_report",
    "beat",
    "claim",
    "cut",
    "drop_torn",
    "expire",
    "expire_leases",
    "fills_a_pool",
    "find_lease",
    "fork",
    "imbalance",
    "keep",
    "later_clocks",
    "make_room",
    "open_group",
    "open_run",
    "open_session",
    "publish",
    "record",
    "recount",
    "release",
    "release_lease",
    "renew_lease",
    "renew_term",
    "restart_clocks",
    "retire",
    "settle_lease",
    "take_lease",
    "take_term",
]
