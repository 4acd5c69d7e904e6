"""Who may cut, record, publish and save: one learner at a time, numbered by term, and what a new one does with unfinished plans."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from penstock.errors import ConflictError, FencedError, UnknownError
from penstock.ledger.book import Decision, Ledger, Past
from penstock.ledger.states import move_group
from penstock.types import GroupState, Record, TermRecord

Resume = Literal["replay", "recut"]
"""What a new life does with plans after its checkpoint: execute them again, or undo them and cut anew."""


def take_term(
    ledger: Ledger, past: Past, owner: str, checkpoint: int, now: float, *, resume: Resume = "replay", replaces: str | None = None
) -> Decision[TermRecord]:
    """Begin a learner's life at `checkpoint`. `owner` names this life; asking again for it gives the same term.

    Refused with `ConflictError` while another owner renews, unless the caller knows that owner to be dead and names it in `replaces`; with
    `FencedError` for a life that was replaced, whose request is only late.
    """
    term = ledger.term
    if term is not None and term.owner == owner:
        renewed = replace(term, expires_at=now + ledger.laws.term_seconds)
        return Decision(renewed, (renewed,))
    if term is not None and owner in term.former:
        raise FencedError(f"{owner} has been replaced: a life has one term")
    if term is not None and now < term.expires_at and replaces != term.owner:
        raise ConflictError(f"term {term.term} belongs to {term.owner} for another {term.expires_at - now:.1f} s")
    if checkpoint not in ledger.checkpoints and not (checkpoint == 0 and not ledger.checkpoints):
        raise UnknownError(f"no kept checkpoint update_{checkpoint}; there are {sorted(ledger.checkpoints)}")
    record = TermRecord(
        run=ledger.run.run,
        term=1 if term is None else term.term + 1,
        owner=owner,
        expires_at=now + ledger.laws.term_seconds,
        first_update=checkpoint,
        former=() if term is None else (*term.former, term.owner),
    )
    undone = _undo_plans(ledger, past, checkpoint) if resume == "recut" else ()
    return Decision(record, (*undone, record))


def renew_term(ledger: Ledger, term: int, now: float) -> Decision[TermRecord]:
    """The learner is alive. Raises `FencedError` if another took over."""
    renewed = replace(check_term(ledger, term), expires_at=now + ledger.laws.term_seconds)
    return Decision(renewed, (renewed,))


def check_term(ledger: Ledger, term: int) -> TermRecord:
    """The current term, if it is the caller's. An expired one still counts until somebody takes the next."""
    current = ledger.term
    if current is None or term != current.term:
        newest = "none was taken" if current is None else f"the newest is {current.term} of {current.owner}"
        raise FencedError(f"term {term} is over: {newest}")
    return current


def _undo_plans(ledger: Ledger, past: Past, checkpoint: int) -> tuple[Record, ...]:
    """Records that make every plan from `checkpoint` on void and its groups ready again."""
    if checkpoint != ledger.newest_checkpoint:
        raise ConflictError(f"a recut starts at the newest checkpoint, update_{ledger.newest_checkpoint}, not at update_{checkpoint}")
    records: list[Record] = []
    freed: dict[str, None] = {}
    for update in range(checkpoint, ledger.next_update + 1):
        plan = ledger.plans.get(update) or past.plan(ledger.run.run, update)
        if plan is None or plan.void:
            continue
        records.append(replace(plan, void=True))
        if update in ledger.outcomes:
            records.append(replace(ledger.outcomes[update], void=True))
        freed.update(dict.fromkeys(planned.id for planned in plan.groups))
    for group_id in freed:
        group = ledger.groups.get(group_id)
        if group is None:
            continue  # dropped with a recorded skip: it stays dropped
        kept = tuple(update for update in group.updates if update < checkpoint)
        if group.state is GroupState.BOUND:
            records.append(move_group(group, GroupState.READY, updates=kept, bound_at=None))
        else:
            records.append(replace(group, updates=kept))
    return tuple(records)
