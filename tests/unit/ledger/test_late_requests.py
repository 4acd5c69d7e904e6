"""Requests that come twice, or long after everybody has moved on, change nothing."""

from __future__ import annotations

import pytest

from penstock import ledger as law
from penstock.errors import FencedError
from penstock.testing.ledger import Notebook
from penstock.types import GroupState, Laws


def claim(book: Notebook, number: int, count: int = 1) -> list[int]:
    """Members of the one group that a claim hands out."""
    return [slot.member for slot in book.do(law.claim(book.ledger, "s", count, None, book.now, number=number))]


def test_a_repeated_claim_gives_the_same_slots_and_no_others() -> None:
    book = Notebook()
    book.open("g/0/0", size=3)
    book.do(law.open_session(book.ledger, "s", "worker", book.now))
    assert claim(book, 1) == [0]
    assert claim(book, 1) == [0]
    assert claim(book, 2) == [1]
    assert claim(book, 1) == [0]
    book.write("g/0/0", 0)
    assert claim(book, 1) == []
    assert claim(book, 3, count=5) == [2]


def test_a_session_that_is_opened_again_remembers_its_claims() -> None:
    book = Notebook()
    book.open("g/0/0", size=2)
    book.do(law.open_session(book.ledger, "s", "worker", book.now))
    assert claim(book, 1) == [0]
    book.do(law.open_session(book.ledger, "s", "worker", book.now))
    assert claim(book, 1) == [0]


def test_a_life_that_was_replaced_gets_no_second_term() -> None:
    book = Notebook()
    assert book.learner("first") == 1
    book.now = 20.0
    assert book.learner("second") == 2
    book.now = 40.0
    with pytest.raises(FencedError, match="first has been replaced"):
        book.learner("first")
    assert book.learner("third") == 3
    assert book.ledger.term is not None
    assert book.ledger.term.former == ("first", "second")


def test_a_retired_checkpoint_does_not_come_back() -> None:
    book = Notebook()
    book.learner()
    for update in range(3):
        book.fill(f"g/0/{update}", version=update)
        book.cut(update)
        book.record(update)
        book.keep(update + 1)
        book.publish(update + 1)
    book.do(law.retire(book.ledger, 2, 1))
    late = book.do(law.keep(book.ledger, book, 2, "checkpoint", 1, book.now))
    assert not late.kept
    assert sorted(book.ledger.checkpoints) == [1, 3]


def test_a_group_that_has_trained_and_goes_stale_after_its_checkpoint_is_spent() -> None:
    book = Notebook(Laws(max_lag=0, max_reuse=2))
    book.learner()
    book.fill("used/0/0")
    book.cut(0)
    book.record(0)
    book.publish(1)
    book.keep(1)
    assert book.state("used/0/0") is GroupState.READY
    book.fill("fresh/0/0", version=1)
    book.cut(1)
    assert book.state("used/0/0") is GroupState.SPENT
    assert law.imbalance(book.ledger) == 0
