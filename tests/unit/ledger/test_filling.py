"""A slot that is filled quickly is the one that is filled by the book."""

from __future__ import annotations

from dataclasses import fields

import pytest

from penstock.errors import InvariantError
from penstock.ledger.states import fill_member, move_member
from penstock.types import MemberRecord, MemberState


def test_a_filled_slot_keeps_all_that_a_moved_one_keeps() -> None:
    slot = MemberRecord(
        run="run", group_id="g", member=3, retry=2, failures=1, session="s", claim=4, claimed_at=5.0, uid="old", reason="worker_lost", environment="env"
    )
    # So that a field which is added to the record, and not here, is missed.
    assert all(getattr(slot, field.name) != field.default for field in fields(slot) if field.name != "state")
    assert fill_member(slot, "new") == move_member(slot, MemberState.ACCEPTED, session=None, uid="new", reason=None)


@pytest.mark.parametrize("state", [MemberState.ACCEPTED, MemberState.FAILED])
def test_a_slot_that_is_settled_is_not_filled_again(state: MemberState) -> None:
    with pytest.raises(InvariantError, match="cannot go from"):
        fill_member(MemberRecord(run="run", group_id="g", member=0, state=state), "new")
