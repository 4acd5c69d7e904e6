"""`penstock ledger`: the account of a run as a table."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

from penstock.buffer.api import EnvironmentLedger, LedgerReply

_HEAD = ("environment", "purpose", "what", "state", "reason", "count")
_STATES = ("open", "complete", "ready", "bound", "spent", "dropped", "pending", "accepted", "failed")


def describe_ledger(ledger: LedgerReply) -> str:
    """Every state with its reason and count, by environment and purpose, what they add up to, and what does not add up."""
    rows = [_HEAD, *chain.from_iterable(map(_rows, ledger.balances))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    table = ["  ".join([*(word.ljust(width) for word, width in zip(row[:-1], widths, strict=False)), row[-1].rjust(widths[-1])]) for row in rows]
    verdict = "everything is accounted for" if ledger.imbalance == 0 else "groups, members or credits are unaccounted for; `penstock verify` says what is wrong"
    return "\n".join([f"run {ledger.run}", *table, f"imbalance {ledger.imbalance}: {verdict}"])


def _rows(found: EnvironmentLedger) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for what, counts, total, issued in (("groups", found.groups, "opened", found.opened), ("members", found.members, "issued", found.issued)):
        rows += [(found.environment, found.purpose.value, what, state, reason, str(count)) for state, reason, count in _places(counts)]
        rows.append((found.environment, found.purpose.value, what, f"= {total}", "", str(issued)))
    return rows


def _places(counts: Mapping[str, int]) -> list[tuple[str, str, int]]:
    """(state, reason, count), in the order of a life."""
    places = []
    for place, count in counts.items():
        state, _, reason = place.partition("(")
        places.append((state, reason.removesuffix(")"), count))
    return sorted(places, key=lambda place: (_STATES.index(place[0]), place[1]))
