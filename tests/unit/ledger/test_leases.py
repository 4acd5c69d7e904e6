"""Leases: whole groups in the hands of outside consumers."""

from __future__ import annotations

import pytest

from penstock import ledger as law
from penstock.errors import FencedError, ForbiddenError, InvalidError, UnknownError
from penstock.ledger import leases
from penstock.testing.ledger import Notebook
from penstock.types import GroupState, Laws, LeaseRecord, LeaseState, Plan


def a_book(num_groups: int = 3, **laws: int) -> Notebook:
    book = Notebook(Laws(**laws))  # type: ignore[arg-type]
    for index in range(num_groups):
        book.fill(f"env/0/{index}")
    return book


def ids(lease: LeaseRecord | law.Wait) -> list[str]:
    assert isinstance(lease, LeaseRecord), lease
    return [group.id for group in lease.groups]


def test_a_lease_takes_the_oldest_groups_and_settling_spends_them() -> None:
    book = a_book()
    assert ids(book.take("l1", groups=2)) == ["env/0/0", "env/0/1"]
    assert [book.state(f"env/0/{index}") for index in range(3)] == ["bound", "bound", "ready"]
    assert book.settle("l1").state is LeaseState.SETTLED
    assert [book.state(f"env/0/{index}") for index in range(3)] == ["spent", "spent", "ready"]
    assert book.stored_groups["env/0/0"].lease == "l1"
    assert law.imbalance(book.ledger) == 0


def test_the_newest_come_first_if_asked_for() -> None:
    assert ids(a_book().take("l1", groups=2, order="newest")) == ["env/0/2", "env/0/1"]


def test_a_lease_by_items_takes_the_fewest_whole_groups_that_reach_them() -> None:
    book = a_book()
    assert ids(book.take("l1", items=3)) == ["env/0/0", "env/0/1"]
    waiting = book.take("l2", items=3)
    assert waiting == law.Wait("2 items are ready, 3 are needed")
    assert book.state("env/0/2") == "ready"


def test_a_lease_has_so_many_groups_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "MOST_GROUPS", 2)
    book = a_book(num_groups=7)
    assert ids(book.take("l1")) == ["env/0/0", "env/0/1"]
    assert ids(book.take("l2", groups=3)) == ["env/0/2", "env/0/3"]
    assert ids(book.take("l3", items=4)) == ["env/0/4", "env/0/5"]
    book.fill("env/0/7")
    book.fill("env/0/8")
    with pytest.raises(InvalidError, match="items: the 2 groups that one lease may have hold 4, not 5"):
        book.take("l4", items=5)
    with pytest.raises(InvalidError, match="at_least: 3 groups cannot be among 2"):
        book.take("l4", at_least=3)
    assert book.state("env/0/6") == "ready"


def test_leases_with_very_many_groups_expire_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "MOST_GROUPS", 3)
    book = a_book(num_groups=5)
    for name, num_groups in (("l1", 1), ("l2", 1), ("l3", 3)):
        book.take(name, groups=num_groups, seconds=10.0)
    book.now += 20.0
    for expected in (["l1", "l2"], ["l3"], []):
        assert [lease.lease for lease in book.do(law.expire_leases(book.ledger, book.now))] == expected
    assert [book.state(f"env/0/{index}") for index in range(5)] == ["ready"] * 5


def test_a_lease_without_a_number_takes_all_that_is_ready() -> None:
    book = a_book()
    assert len(ids(book.take("l1"))) == 3
    assert book.take("l2") == law.Wait("0 groups are ready, 1 are needed")


def test_a_lease_may_be_of_one_environment() -> None:
    book = a_book(1)
    book.fill("other/0/0", environment="other")
    assert ids(book.take("l1", environments=("other",))) == ["other/0/0"]
    assert book.take("l2", environments=("nowhere",)) == law.Wait("0 groups are ready, 1 are needed")


def test_environments_are_merged_by_age() -> None:
    book = Notebook()
    for index, environment in enumerate("abab"):
        book.fill(f"{environment}/0/{index}", environment=environment)
    assert ids(book.take("l1", groups=3)) == ["a/0/0", "b/0/1", "a/0/2"]


def test_the_same_request_twice_takes_nothing_twice() -> None:
    book = a_book()
    first = book.take("l1", groups=1)
    assert book.take("l1", groups=1) == first
    assert book.state("env/0/1") == "ready"
    settled = book.settle("l1")
    assert book.settle("l1") == settled
    assert book.take("l1", groups=1) == settled


def test_a_lease_that_is_not_renewed_in_time_expires_and_its_settling_is_refused() -> None:
    book = a_book(1)
    book.take("l1", seconds=10.0)
    book.now = 9.0
    assert not book.do(law.expire_leases(book.ledger, book.now))
    book.do(law.renew_lease(book.ledger, book, "l1", "consumer", book.now))
    book.now = 18.0
    assert not book.do(law.expire_leases(book.ledger, book.now))
    book.now = 19.0
    assert [lease.lease for lease in book.do(law.expire_leases(book.ledger, book.now))] == ["l1"]
    assert book.state("env/0/0") == "ready"
    for verb in (law.settle_lease, law.release_lease, law.renew_lease):
        with pytest.raises(FencedError, match="expired"):
            book.do(verb(book.ledger, book, "l1", "consumer", book.now))
    with pytest.raises(FencedError, match="new id"):
        book.take("l1")


def test_what_expired_can_be_taken_by_another_whose_fence_is_larger() -> None:
    book = a_book(1)
    first = book.take("l1", seconds=1.0)
    book.now = 1.0
    book.do(law.expire_leases(book.ledger, book.now))
    second = book.take("l2", consumer="other")
    assert isinstance(first, LeaseRecord)
    assert isinstance(second, LeaseRecord)
    assert first.groups == second.groups
    assert first.fence < second.fence
    with pytest.raises(FencedError):
        book.settle("l1")
    assert book.state("env/0/0") == "bound"


def test_a_released_group_stands_where_it_stood() -> None:
    book = a_book()
    book.take("l1", groups=1)
    released = book.do(law.release_lease(book.ledger, book, "l1", "consumer", 0.0))
    assert book.do(law.release_lease(book.ledger, book, "l1", "consumer", 0.0)) == released
    assert ids(book.take("l2", groups=1)) == ["env/0/0"]


def test_a_lease_belongs_to_its_consumer() -> None:
    book = a_book(1)
    book.take("l1")
    with pytest.raises(ForbiddenError):
        book.settle("l1", consumer="thief")
    with pytest.raises(ForbiddenError):
        book.take("l1", consumer="thief")
    with pytest.raises(UnknownError):
        book.settle("l2")


def test_a_leased_group_is_never_cut_and_a_cut_group_never_leased() -> None:
    book = a_book(2)
    book.take("l1", groups=1)
    book.learner()
    plan = book.cut(0)
    assert isinstance(plan, Plan)
    assert [group.id for group in plan.groups] == ["env/0/1"]
    assert isinstance(book.take("l2"), law.Wait)


def test_a_group_that_may_be_cut_again_belongs_to_the_learner() -> None:
    book = a_book(1, max_reuse=2)
    book.learner()
    book.cut(0)
    book.record(0)
    assert book.state("env/0/0") == "ready"
    assert isinstance(book.take("l1"), law.Wait)


def test_stale_groups_are_dropped_before_a_lease_sees_them() -> None:
    book = a_book(3, max_lag=0)
    book.learner()
    book.cut(0)
    book.record(0)
    assert isinstance(book.take("l1"), law.Wait)
    assert book.stored_groups["env/0/1"].reason == "stale"


def test_settling_gives_credit_back() -> None:
    book = a_book(1)
    counts = book.ledger.counts_of("env", book.stored_groups["env/0/0"].purpose)
    book.take("l1")
    assert counts.held_tokens == 20
    book.settle("l1")
    assert counts.held_tokens == 0


def test_a_restart_gives_leases_their_time_anew() -> None:
    book = a_book(1)
    book.take("l1", seconds=5.0)
    book.ledger.apply(law.restart_clocks(book.ledger, 1000.0))
    assert not book.do(law.expire_leases(book.ledger, 1004.0))
    assert book.do(law.expire_leases(book.ledger, 1005.0))
    assert book.state("env/0/0") is GroupState.READY


@pytest.mark.parametrize(
    "request_", [{"groups": 0}, {"items": -1}, {"groups": 1, "items": 1}, {"groups": 1, "at_least": 2}, {"seconds": 0.0}, {"seconds": float("nan")}]
)
def test_a_request_that_makes_no_sense_is_refused(request_: dict[str, object]) -> None:
    with pytest.raises(InvalidError):
        a_book(1).take("l1", **request_)
