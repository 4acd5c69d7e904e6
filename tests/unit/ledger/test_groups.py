"""A group's life up to the cut."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from penstock import ledger as law
from penstock.errors import ConflictError, FencedError, InvalidError, LimitError, UnknownError
from penstock.ledger.states import GROUP_MOVES, MEMBER_MOVES
from penstock.testing.ledger import Notebook
from penstock.types import AnnotationRecord, GroupState, Laws, MemberState, Payload, Purpose, RolloutStatus


def test_every_state_has_its_moves_and_the_ended_ones_have_none() -> None:
    assert set(GROUP_MOVES) == set(GroupState)
    assert set(MEMBER_MOVES) == set(MemberState)
    assert GROUP_MOVES[GroupState.SPENT] == GROUP_MOVES[GroupState.DROPPED] == frozenset()


def test_a_group_is_ready_when_its_last_member_is_written() -> None:
    book = Notebook()
    book.open("s/0/0", size=3)
    book.write("s/0/0", 0)
    book.write("s/0/0", 2)
    assert book.state("s/0/0") is GroupState.OPEN
    book.write("s/0/0", 1)
    assert book.state("s/0/0") is GroupState.READY


def test_a_prompt_that_members_share_is_counted_once() -> None:
    book = Notebook()
    book.open("s/0/0", size=3)
    for member in range(3):
        book.write("s/0/0", member, tokens=30 + member, prefix_tokens=20)
    assert book.stored_groups["s/0/0"].tokens == 20 + 10 + 11 + 12
    assert book.stored_groups["s/0/0"].credit == 53


def test_opening_twice_opens_once_and_another_group_under_the_id_is_refused() -> None:
    book = Notebook()
    assert book.open("s/0/0").created
    assert not book.open("s/0/0").created
    with pytest.raises(ConflictError, match="s/0/0"):
        book.open("s/0/0", size=5)


def test_the_same_rollout_again_changes_nothing_even_after_the_group_has_ended() -> None:
    book = Notebook()
    book.fill("s/0/0")
    term = book.learner()
    book.cut(0, term)
    book.record(0, term)
    book.keep(1, term)
    assert book.state("s/0/0") is GroupState.SPENT
    assert book.write("s/0/0", 1).duplicate
    with pytest.raises(ConflictError, match="digest"):
        book.write("s/0/0", 1, content="other")
    with pytest.raises(ConflictError, match="spent"):
        book.write("s/0/0", 1, uid="late")


def test_a_slot_takes_one_rollout_and_only_for_its_own_try() -> None:
    book = Notebook()
    book.open("s/0/0")
    book.write("s/0/0", 0)
    with pytest.raises(ConflictError, match="accepted"):
        book.write("s/0/0", 0, uid="another")
    with pytest.raises(FencedError, match="try 0"):
        book.write("s/0/0", 1, retry=1)
    with pytest.raises(ConflictError, match="no member 2"):
        book.write("s/0/0", 2)
    with pytest.raises(UnknownError, match="open it first"):
        book.write("s/0/1", 0)


def test_an_infrastructure_failure_is_stored_and_the_slot_tried_again_a_bounded_number_of_times() -> None:
    book = Notebook(Laws(max_retries=2))
    book.open("s/0/0")
    book.write("s/0/0", 0)
    for retry in range(3):
        assert book.state("s/0/0") is GroupState.OPEN
        book.write("s/0/0", 1, retry=retry, status=RolloutStatus.INFRA_ERROR)
    assert len(book.stored_rollouts) == 4
    assert (book.stored_members["s/0/0", 1].state, book.stored_members["s/0/0", 1].reason) == (MemberState.FAILED, "infra_error")
    assert (book.state("s/0/0"), book.stored_groups["s/0/0"].reason) == (GroupState.DROPPED, "too_few")


def test_an_episode_that_its_environment_calls_invalid_is_not_tried_again() -> None:
    book = Notebook()
    book.open("s/0/0", size=3)
    book.write("s/0/0", 0, status=RolloutStatus.ENV_ERROR)
    book.write("s/0/0", 1)
    book.write("s/0/0", 2)
    assert book.stored_members["s/0/0", 0].state is MemberState.FAILED
    assert (book.state("s/0/0"), book.stored_groups["s/0/0"].usable) == (GroupState.READY, 2)


def test_a_version_that_nobody_recorded_is_refused() -> None:
    book = Notebook()
    book.open("s/0/0")
    with pytest.raises(InvalidError, match="versions: 1 was never recorded"):
        book.write("s/0/0", 0, version=1)
    assert not book.stored_rollouts


def test_a_member_exactly_at_the_lag_is_taken_and_one_beyond_it_drops_its_group() -> None:
    book = Notebook(Laws(max_lag=1))
    term = book.learner()
    book.open("s/0/8")
    book.open("s/0/9")
    for update in range(2):
        book.fill(f"s/0/{update}", version=update)
        book.cut(update, term)
        book.record(update, term)
    assert book.ledger.newest_version == 2
    assert not book.write("s/0/8", 0, version=1).rollout.stale
    assert book.write("s/0/9", 0, version=0).rollout.stale
    assert (book.state("s/0/8"), book.state("s/0/9")) == (GroupState.OPEN, GroupState.DROPPED)
    assert book.stored_groups["s/0/9"].reason == "stale"
    assert book.stored_members["s/0/9", 0].state is MemberState.ACCEPTED
    assert (book.stored_members["s/0/9", 1].state, book.stored_members["s/0/9", 1].reason) == (MemberState.FAILED, "group_dropped")


def test_groups_are_opened_while_credits_last_and_a_drop_gives_them_back() -> None:
    book = Notebook(Laws(credit_tokens=250))
    book.open("s/0/0", first_estimate=100)
    book.open("s/0/1", first_estimate=100)
    with pytest.raises(LimitError, match="no credit"):
        book.open("s/0/2", first_estimate=100)
    for member in range(2):
        book.write("s/0/0", member, status=RolloutStatus.ENV_ERROR)
    assert book.open("s/0/2", first_estimate=100).created


def test_the_estimate_becomes_the_mean_of_what_groups_cost() -> None:
    book = Notebook(Laws(credit_tokens=1000))
    book.fill("s/0/0", tokens=20)
    book.fill("s/0/1", tokens=30)
    assert book.open("s/0/2", first_estimate=999).group.credit == 50
    assert book.ledger.counts_of("env", Purpose.TRAIN).held_tokens == 40 + 60 + 50


def test_each_environment_has_its_share_of_the_credits() -> None:
    book = Notebook(Laws(credit_tokens=1000, fractions={"a": 0.2}))
    book.open("a/0/0", environment="a", first_estimate=150)
    with pytest.raises(LimitError, match="a has 1 groups with 150 tokens"):
        book.open("a/0/1", environment="a", first_estimate=150)
    assert book.open("b/0/0", environment="b", first_estimate=800).created


def test_credits_can_be_counted_in_groups() -> None:
    book = Notebook(Laws(credit_groups=3, credit_tokens=1))
    for index in range(3):
        book.open(f"s/0/{index}", first_estimate=10**6)
    with pytest.raises(LimitError, match="3 groups"):
        book.open("s/0/3")
    for member in range(2):
        book.write("s/0/1", member, status=RolloutStatus.ENV_ERROR)
    assert book.open("s/0/3").created


def test_evaluation_groups_hold_no_credit_and_may_be_of_any_version() -> None:
    book = Notebook(Laws(credit_tokens=10, max_lag=0))
    book.open("eval/0/0", size=1, purpose=Purpose.EVAL)
    term = book.learner()
    book.fill("s/0/0")
    book.cut(0, term)
    book.record(0, term)
    book.write("eval/0/0", 0, version=0)
    assert book.state("eval/0/0") is GroupState.READY
    assert "eval/0/0" not in book.ledger.groups


def test_a_group_waits_for_the_annotations_that_the_laws_name() -> None:
    book = Notebook(Laws(annotations=("judge",)))
    book.fill("s/0/0")
    assert book.state("s/0/0") is GroupState.COMPLETE
    for uid in ("s/0/0:0:0", "s/0/0:1:0"):
        note = AnnotationRecord(run="run", rollout_uid=uid, group_id="", name="judge", step=None, uid=f"{uid}:judge", digest="d")
        payload = Payload(run="run", uid=note.uid, content_type="json", body=b"{}", digest="d")
        book.do(law.annotate(book.ledger, book, note, payload, 0.0))
    assert book.state("s/0/0") is GroupState.READY
    assert book.do(law.annotate(book.ledger, book, note, payload, 0.0)).duplicate


def test_the_cursor_follows_the_groups_that_were_opened() -> None:
    book = Notebook()
    book.open("sort/0/0")
    book.open("sort/1/3")
    book.open("sort/1/2")
    book.open("by hand")
    assert book.ledger.cursors == {"sort": (1, 3)}


def test_a_try_at_another_problem_does_not_fill_a_group() -> None:
    book = Notebook()
    book.open("s/0/0", environment="env")
    accepted = book.write("s/0/0", 0).rollout
    for wrong in ({"environment": "other"}, {"problem_id": "other"}):
        foreign = replace(accepted, uid="foreign", member=1, **wrong)
        payload = Payload(run="run", uid="foreign", content_type="json", body=b"", digest=foreign.digest)
        with pytest.raises(InvalidError, match="is for problem s/0/0 of env"):
            law.accept(book.ledger, book, foreign, payload, 0.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_lag": -1},
        {"min_group_size": 0},
        {"session_seconds": -1.0},
        {"fractions": {"a": 7.5}},
        {"fractions": {"a": 0.6, "b": 0.6}},
        {"credit_groups": 0},
        {"annotations": ("judge", "a b")},
    ],
)
def test_laws_that_nobody_can_keep_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidError, match="laws"):
        law.open_run(None, "run", Laws(**wrong), "weights-0", 0.0)


def test_what_groups_were_judged_by_cannot_change_while_they_are_under_way() -> None:
    book = Notebook(Laws(annotations=("judge",)))
    book.fill("s/0/0")
    with pytest.raises(ConflictError, match="annotations cannot change while 1 groups"):
        law.open_run(book.ledger, "run", Laws(), "weights-0", 1.0)
    with pytest.raises(ConflictError, match="min_group_size"):
        law.open_run(book.ledger, "run", Laws(annotations=("judge",), min_group_size=3), "weights-0", 1.0)


@pytest.mark.parametrize("wrong", [{"size": 0}, {"first_estimate": -1}, {"size": 2**64}])
def test_a_group_that_could_never_end_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidError, match=next(iter(wrong))):
        Notebook().open("s/0/0", **wrong)
