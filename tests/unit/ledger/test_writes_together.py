"""Rollouts that are written together: each has its own answer, and a group changes once."""

from __future__ import annotations

from typing import Any

from penstock import ledger as law
from penstock.errors import ConflictError, FencedError, InputError, InvalidError, UnknownError
from penstock.testing.ledger import Notebook
from penstock.types import Arrival, GroupRecord, GroupState, Laws, MemberRecord, MemberState, Payload, Purpose, RolloutRecord, RolloutStatus, Version


def notebook(*groups: str, **laws: Any) -> Notebook:
    book = Notebook(Laws(**laws))
    for group in groups:
        book.open(group)
    book.now = 5.0
    return book


def together(book: Notebook, *writes: tuple[RolloutRecord, Payload]) -> law.Decision[tuple[law.Accepted | InputError, ...]]:
    return law.accept_all(book.ledger, book, writes, book.now)


def test_a_group_is_written_once_and_becomes_ready_in_the_order_of_its_last_member() -> None:
    book = notebook("a", "b", "c")
    writes = [book.rollout_of(group, member) for group, member in (("a", 0), ("b", 0), ("c", 0), ("b", 1), ("a", 1))]
    decision = together(book, *writes)
    groups = [record for record in decision.records if isinstance(record, GroupRecord)]
    assert [(group.id, group.state, group.ready_order, group.usable, group.pending) for group in groups] == [
        ("b", GroupState.READY, 0, 2, 0),
        ("a", GroupState.READY, 1, 2, 0),
        ("c", GroupState.OPEN, None, 1, 1),
    ]
    assert not [record for record in decision.records if isinstance(record, MemberRecord)], "the rollouts say which slots they fill"
    assert all(isinstance(answer, law.Accepted) and answer.rollout.stored_at == 5.0 for answer in decision.reply)
    book.do(decision)
    assert (law.imbalance(book.ledger), book.ledger.last_ready_order) == (0, 1)
    slots = [slot for slot in book.stored_members.values() if slot.state is MemberState.ACCEPTED]
    assert {(slot.group_id, slot.member, slot.uid) for slot in slots} == {(r.group_id, r.member, r.uid) for r, _ in writes}
    assert [group.filled for group in book.stored_groups.values()] == [2, 2, 1]


def test_a_group_spans_the_versions_of_all_that_came() -> None:
    book = notebook("a", max_lag=9)
    book.ledger.apply(Version(run="run", version=version, digest=f"w{version}") for version in (1, 2, 3))
    book.do(together(book, book.rollout_of("a", 0, version=2, tokens=7), book.rollout_of("a", 1, version=1, tokens=4)))
    group = book.stored_groups["a"]
    assert (group.oldest_version, group.newest_version, group.longest, group.tokens) == (1, 2, 7, 11)


def test_one_that_is_refused_leaves_the_others_alone() -> None:
    book = notebook("a", "b", max_lag=0)
    foreign = book.rollout_of("a", 1)
    answers = book.do(
        together(
            book,
            book.rollout_of("nowhere", 0),
            book.rollout_of("a", 0),
            book.rollout_of("a", 0, uid="other"),
            book.rollout_of("a", 0, content="changed"),
            book.rollout_of("a", 0),
            book.rollout_of("a", 1, retry=1),
            book.rollout_of("a", 1, version=4),
            book.rollout_of("a", 2),
            foreign,
            book.rollout_of("a", 1, uid="late"),
            book.rollout_of("b", 0),
        )
    )
    kinds = [type(answer) for answer in answers]
    assert kinds == [
        UnknownError,
        law.Accepted,
        ConflictError,
        ConflictError,
        law.Accepted,
        FencedError,
        InvalidError,
        ConflictError,
        law.Accepted,
        ConflictError,
        law.Accepted,
    ]
    assert [answer.duplicate for answer in answers if isinstance(answer, law.Accepted)] == [False, True, False, False]
    assert sorted(book.stored_rollouts) == ["a:0:0", "a:1:0", "b:0:0"]
    assert (book.state("a"), book.state("b")) == (GroupState.READY, GroupState.OPEN)


def test_a_failed_try_is_followed_by_the_next_in_the_same_batch() -> None:
    book = notebook("a", max_retries=1, min_group_size=1)
    broken = RolloutStatus.INFRA_ERROR
    writes = [book.rollout_of("a", 0, retry=retry, status=broken) for retry in (0, 1, 2)]
    *tried, late, last = book.do(together(book, *writes, book.rollout_of("a", 1)))
    assert all(isinstance(answer, law.Accepted) for answer in (*tried, last))
    assert isinstance(late, ConflictError)
    assert (book.state("a"), book.stored_groups["a"].usable) == (GroupState.READY, 1)


def test_what_comes_after_a_stale_member_finds_the_group_dropped() -> None:
    book = notebook("a", max_lag=0)
    book.ledger.apply([Version(run="run", version=1, digest="w1")])
    stale, after = book.do(together(book, book.rollout_of("a", 0, version=0), book.rollout_of("a", 1, version=1)))
    assert isinstance(stale, law.Accepted)
    assert stale.rollout.stale
    assert str(after) == "group a is dropped (stale) and takes no more members"
    assert (book.stored_members["a", 1].state, law.imbalance(book.ledger)) == ("failed", 0)


def test_a_group_that_takes_items_as_they_arrive_takes_no_rollouts() -> None:
    book = notebook()
    arriving = GroupRecord(
        run="run",
        id="i/0",
        environment="env",
        problem_id="i",
        purpose=Purpose.TRAIN,
        size=2,
        seed=0,
        state=GroupState.OPEN,
        order=0,
        arrival=Arrival(instance="i"),
    )
    book.stored_groups["i/0"] = arriving
    (answer,) = together(book, book.rollout_of("i/0", 0)).reply
    assert str(answer) == "group i/0 takes items as they arrive, not rollouts"
