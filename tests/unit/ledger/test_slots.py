"""Sessions, claims, and slots whose worker is gone."""

from __future__ import annotations

import pytest

from penstock import ledger as law
from penstock.errors import ConflictError, FencedError
from penstock.testing.ledger import Notebook
from penstock.types import GroupState, Laws, MemberState


def session(book: Notebook, name: str = "one") -> str:
    book.do(law.open_session(book.ledger, name, f"worker of {name}", book.now))
    return name


def claim(book: Notebook, name: str, count: int = 10) -> list[tuple[str, int, int]]:
    slots = book.do(law.claim(book.ledger, name, count, None, book.now))
    return [(slot.group.id, slot.member, slot.retry) for slot in slots]


def test_slots_are_handed_out_once_oldest_group_first_and_environments_in_turn() -> None:
    book = Notebook()
    book.open("a/0/0", environment="a")
    book.open("a/0/1", environment="a")
    book.open("b/0/0", environment="b")
    one = session(book)
    assert claim(book, one, 3) == [("a/0/0", 0, 0), ("b/0/0", 0, 0), ("a/0/0", 1, 0)]
    assert claim(book, one) == [("a/0/1", 0, 0), ("b/0/0", 1, 0), ("a/0/1", 1, 0)]
    assert claim(book, one) == []


def test_a_lost_worker_gives_its_slots_back_as_the_next_retry_and_is_fenced() -> None:
    book = Notebook()
    book.open("s/0/0")
    one = session(book)
    claim(book, one)
    book.now = 9.9
    assert book.do(law.expire(book.ledger, book.now)) == ()
    book.now = 10.0
    assert [ended.session for ended in book.do(law.expire(book.ledger, book.now))] == ["one"]
    with pytest.raises(FencedError, match="try 1"):
        book.write("s/0/0", 0, retry=0)
    with pytest.raises(FencedError, match="one"):
        law.beat(book.ledger, "one", book.now)
    two = session(book, "two")
    assert claim(book, two) == [("s/0/0", 0, 1), ("s/0/0", 1, 1)]
    book.write("s/0/0", 0, retry=1)
    assert book.stored_members["s/0/0", 0].state is MemberState.ACCEPTED


def test_a_beat_puts_off_the_deadline() -> None:
    book = Notebook()
    session(book)
    book.now = 9.0
    book.do(law.beat(book.ledger, "one", book.now))
    book.now = 18.9
    assert book.do(law.expire(book.ledger, book.now)) == ()


def test_a_slot_whose_workers_keep_dying_fails_in_the_end() -> None:
    book = Notebook(Laws(max_retries=1))
    book.open("s/0/0")
    for life in range(2):
        claim(book, session(book, str(life)))
        book.now += 10.0
        book.do(law.expire(book.ledger, book.now))
    assert (book.stored_members["s/0/0", 0].state, book.stored_members["s/0/0", 0].reason) == (MemberState.FAILED, "worker_lost")
    assert (book.state("s/0/0"), book.stored_groups["s/0/0"].reason) == (GroupState.DROPPED, "too_few")


def test_a_worker_that_leaves_in_good_order_costs_no_try() -> None:
    book = Notebook(Laws(max_retries=0))
    book.open("s/0/0")
    for life in range(3):
        one = session(book, str(life))
        assert len(claim(book, one)) == 2
        book.do(law.release(book.ledger, one, book.now))
    assert book.stored_members["s/0/0", 0].retry == 3
    assert book.state("s/0/0") is GroupState.OPEN
    book.do(law.release(book.ledger, "2", book.now))


def test_a_session_belongs_to_one_worker() -> None:
    book = Notebook()
    session(book)
    with pytest.raises(ConflictError, match="worker of one"):
        law.open_session(book.ledger, "one", "somebody else", book.now)


def test_what_was_handed_out_before_comes_before_what_never_was() -> None:
    book = Notebook()
    book.open("s/0/0")
    claim(book, session(book))
    book.open("s/0/1")
    book.do(law.release(book.ledger, "one", book.now))
    assert claim(book, session(book, "two"), 1) == [("s/0/0", 0, 1)]


def test_seeds_of_slots_differ_by_member_and_retry() -> None:
    seeds = {law.slots.slot_seed(7, member, retry) for member in range(4) for retry in range(4)}
    assert len(seeds) == 16
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_an_environment_named_twice_hands_out_each_slot_once() -> None:
    book = Notebook()
    book.open("s/0/0")
    slots = book.do(law.claim(book.ledger, session(book), 10, ["env", "env"], book.now))
    assert [slot.member for slot in slots] == [0, 1]
