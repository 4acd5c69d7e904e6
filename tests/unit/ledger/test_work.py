"""Who works on which missing annotations."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import ledger as law
from penstock.errors import FencedError, ForbiddenError, LimitError, UnknownError
from penstock.ledger import work
from penstock.ledger.work import WorkBook, WorkRequest, missing_work
from penstock.testing.ledger import Notebook
from penstock.types import AnnotationRecord, Laws, Payload, Purpose, RolloutRecord, RolloutStatus


def notebook() -> Notebook:
    return Notebook(Laws(annotations=("judge", "score")))


def annotate(book: Notebook, uid: str, name: str, failed: str | None = None) -> None:
    record = AnnotationRecord(run="run", rollout_uid=uid, group_id="", name=name, step=None, uid=f"{uid} {name}", digest="d", failed=failed)
    payload = Payload(run="run", uid=record.uid, content_type="json", body=b"", digest="d")
    book.do(law.annotate(book.ledger, book, record, payload, book.now))


def wanted(lease: str, count: int = 10, **facts: object) -> WorkRequest:
    return WorkRequest(lease=lease, consumer="me", count=count, seconds=10.0, **facts)  # type: ignore[arg-type]


def items(lease: work.WorkLease) -> list[tuple[str, tuple[str, ...]]]:
    return [(item.rollout_uid, item.missing) for item in lease.items]


def test_only_usable_members_of_complete_training_groups_lack_something() -> None:
    book = notebook()
    book.open("open")
    book.write("open", 0)
    book.open("eval", purpose=Purpose.EVAL)
    book.write("eval", 0)
    book.write("eval", 1)
    book.open("g", size=3)
    book.write("g", 0)
    book.write("g", 1, status=RolloutStatus.ENV_ERROR)
    book.write("g", 2)
    annotate(book, "g:0:0", "judge")
    assert [(item.rollout_uid, item.missing) for item in missing_work(book.ledger)] == [("g:0:0", ("score",)), ("g:2:0", ("judge", "score"))]
    assert [item.missing for item in missing_work(book.ledger, names=("judge", "other"))] == [("judge",)]
    assert list(missing_work(book.ledger, environments=("elsewhere",))) == []


def test_nothing_is_handed_out_twice_while_it_is_held() -> None:
    book, desk = notebook(), WorkBook()
    book.fill("g")
    first = desk.take(book.ledger, wanted("one", names=("judge",)), 0.0)
    assert items(first) == [("g:0:0", ("judge",)), ("g:1:0", ("judge",))]
    assert desk.take(book.ledger, wanted("one"), 1.0) == first
    assert items(desk.take(book.ledger, wanted("two", 1), 0.0)) == [("g:0:0", ("score",))]
    assert items(desk.take(book.ledger, wanted("three"), 0.0)) == [("g:1:0", ("score",))]
    assert items(desk.take(book.ledger, wanted("four"), 0.0)) == []


def test_what_expires_or_is_released_is_free_again_but_not_what_was_done() -> None:
    book, desk = notebook(), WorkBook()
    book.fill("g")
    desk.take(book.ledger, wanted("one"), 0.0)
    desk.renew("one", "me", 5.0)
    assert desk.expire(14.9) == ()
    annotate(book, "g:0:0", "judge")
    assert [lease.lease for lease in desk.expire(15.0)] == ["one"]
    second = desk.take(book.ledger, wanted("two"), 15.0)
    assert items(second) == [("g:0:0", ("score",)), ("g:1:0", ("judge", "score"))]
    assert desk.release("two", "me")
    assert not desk.release("two", "me")
    assert items(desk.take(book.ledger, wanted("three"), 16.0)) == items(second)


def test_a_failed_annotation_is_a_result_and_makes_the_group_ready() -> None:
    book = notebook()
    book.fill("g")
    for uid in ("g:0:0", "g:1:0"):
        annotate(book, uid, "judge")
        annotate(book, uid, "score", failed="out of memory")
    assert book.state("g") == "ready"
    assert list(missing_work(book.ledger)) == []


def test_a_lease_is_of_one_consumer_and_ends_for_good() -> None:
    book, desk = notebook(), WorkBook()
    book.fill("g")
    desk.take(book.ledger, wanted("one"), 0.0)
    with pytest.raises(ForbiddenError, match="not held by you"):
        desk.renew("one", "you", 1.0)
    desk.expire(100.0)
    with pytest.raises(FencedError):
        desk.renew("one", "me", 101.0)
    with pytest.raises(FencedError, match="new name"):
        desk.take(book.ledger, wanted("one"), 101.0)
    with pytest.raises(UnknownError):
        desk.renew("never", "me", 101.0)


def test_leases_are_bounded_and_an_empty_one_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "MOST_LEASES", 2)
    book, desk = notebook(), WorkBook()
    desk.take(book.ledger, wanted("empty"), 0.0)
    with pytest.raises(UnknownError):
        desk.renew("empty", "me", 0.0)
    book.fill("g", size=3)
    desk.take(book.ledger, wanted("one", 1), 0.0)
    desk.take(book.ledger, wanted("two", 1), 0.0)
    with pytest.raises(LimitError, match="2 leases"):
        desk.take(book.ledger, wanted("three", 1), 0.0)


def test_complete_groups_are_found_after_a_ready_one_has_left() -> None:
    book = notebook()
    book.fill("a")
    book.fill("b")
    assert list(book.ledger.complete) == ["a", "b"]
    for uid in ("a:0:0", "a:1:0"):
        annotate(book, uid, "judge")
        annotate(book, uid, "score")
    assert list(book.ledger.complete) == ["b"]


def test_what_others_have_is_not_looked_at_again_by_those_who_wait() -> None:
    book, desk = notebook(), WorkBook()
    for name in "abc":
        book.fill(name)
    desk.take(book.ledger, wanted("all"), 0.0)
    assert items(desk.take(book.ledger, wanted("none"), 0.0)) == []
    looked_at: list[str] = []

    class Watched(dict[str, list[RolloutRecord]]):
        def get(self, group_id: str, default: Any = None) -> Any:
            looked_at.append(group_id)
            return super().get(group_id, default)

    book.ledger.rollouts_of = Watched(book.ledger.rollouts_of)
    assert items(desk.take(book.ledger, wanted("none"), 1.0)) == [] and looked_at == []
    book.fill("d")
    assert items(desk.take(book.ledger, wanted("some", 1), 1.0)) == [("d:0:0", ("judge", "score"))] and set(looked_at) == {"d"}


def test_work_that_a_restart_has_undone_is_handed_out_again() -> None:
    book, desk = notebook(), WorkBook()
    book.fill("g")
    before = dict(book.ledger.annotations)
    annotate(book, "g:0:0", "judge")
    annotate(book, "g:1:0", "judge")
    assert items(desk.take(book.ledger, wanted("one", names=("judge",)), 0.0)) == []
    book.ledger.annotations = before
    desk.look_again()
    assert items(desk.take(book.ledger, wanted("two", names=("judge",)), 0.0)) == [("g:0:0", ("judge",)), ("g:1:0", ("judge",))]


@given(st.lists(st.tuples(st.sampled_from(["take", "release", "annotate"]), st.integers(0, 5), st.sampled_from([None, ("judge",), ("score",)])), max_size=30))
def test_what_is_handed_out_is_all_that_is_missing_and_nobody_has(steps: list[tuple[str, int, tuple[str, ...] | None]]) -> None:
    book, desk = notebook(), WorkBook()
    for name in "abc":
        book.fill(name)
    held: dict[str, set[tuple[str, str]]] = {}
    for place, (verb, number, names) in enumerate(steps):
        if verb == "take":
            taken = set().union(*held.values())
            left = [
                (item.rollout_uid, tuple(name for name in item.missing if (item.rollout_uid, name) not in taken)) for item in missing_work(book.ledger, names)
            ]
            lease = desk.take(book.ledger, wanted(f"l{place}", number + 1, names=names), 0.0)
            assert items(lease) == [(uid, missing) for uid, missing in left if missing][: number + 1]
            if lease.items:
                held[lease.lease] = {(uid, name) for uid, missing in items(lease) for name in missing}
        elif verb == "release" and held:
            lease_id = sorted(held)[number % len(held)]
            del held[lease_id]
            desk.release(lease_id, "me")
        elif verb == "annotate" and (work_left := list(missing_work(book.ledger))):
            item = work_left[number % len(work_left)]
            annotate(book, item.rollout_uid, item.missing[0])
        assert work.num_missing(book.ledger) == len(list(missing_work(book.ledger)))
