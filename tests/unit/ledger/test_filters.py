"""Filters as laws: what nobody may train on gives its credit back at once."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from penstock import ledger as law
from penstock.errors import InvalidError
from penstock.testing.ledger import Notebook
from penstock.types import AnnotationRecord, GroupState, Laws, Payload, Plan, Purpose, RolloutStatus

ZERO_VARIANCE = {"zero_variance": {}}


def fill(book: Notebook, group_id: str, rewards: Sequence[float], *, version: int = 0, tokens: Sequence[int] = (10, 10)) -> None:
    book.open(group_id, size=len(rewards))
    for member, reward in enumerate(rewards):
        book.write(group_id, member, reward=reward, version=version, tokens=tokens[member % len(tokens)])


def reason(book: Notebook, group_id: str) -> str | None:
    return book.stored_groups[group_id].reason


def test_a_group_whose_rewards_are_alike_is_dropped_and_its_credit_comes_back() -> None:
    book = Notebook(Laws(filters=ZERO_VARIANCE))
    fill(book, "s/0/0", [1.0, 1.0])
    assert (book.state("s/0/0"), reason(book, "s/0/0"), book.stored_groups["s/0/0"].credit) == (GroupState.DROPPED, "filtered:zero_variance", 0)
    assert book.ledger.counts_of("env", Purpose.TRAIN).held_tokens == 0
    fill(book, "s/0/1", [1.0, 0.0])
    assert book.state("s/0/1") is GroupState.READY
    assert law.imbalance(book.ledger) == 0


def test_a_cut_waits_until_enough_groups_teach_something_and_says_what_was_dropped() -> None:
    book = Notebook(Laws(filters=ZERO_VARIANCE))
    term = book.learner()
    for number, rewards in enumerate(([1.0, 0.0], [0.0, 0.0], [1.0, 1.0], [1.0, 1.0])):
        fill(book, f"s/0/{number}", rewards)
    assert book.cut(0, term, groups_per_update=2) == law.Wait("no ready group; so far filters have dropped zero_variance 3", "env")
    fill(book, "s/0/4", [0.0, 1.0])
    plan = book.cut(0, term, groups_per_update=2)
    assert isinstance(plan, Plan)
    assert [group.id for group in plan.groups] == ["s/0/0", "s/0/4"]


def test_credits_never_run_out_however_many_groups_teach_nothing() -> None:
    book = Notebook(Laws(credit_groups=2, filters=ZERO_VARIANCE))
    for number in range(20):
        fill(book, f"s/0/{number}", [0.0, 0.0])
    fill(book, "s/0/20", [0.0, 1.0])
    assert book.state("s/0/20") is GroupState.READY


def test_what_was_dropped_is_counted_by_reason_and_by_length() -> None:
    book = Notebook(Laws(filters={"zero_variance": {}, "over_long": {"max_tokens": 20}}))
    fill(book, "s/0/0", [1.0, 1.0], tokens=(8, 12))
    fill(book, "s/0/1", [0.0, 0.0], tokens=(6, 4))
    fill(book, "s/0/2", [0.0, 1.0], tokens=(30, 40))
    fill(book, "s/0/3", [0.0, 1.0], tokens=(30, 10))
    counts = book.ledger.counts_of("env", Purpose.TRAIN)
    assert counts.groups[GroupState.DROPPED, "filtered:zero_variance"] == 2
    assert counts.groups[GroupState.DROPPED, "filtered:over_long"] == 1
    assert counts.dropped_longest == {"filtered:zero_variance": 12 + 6, "filtered:over_long": 40}
    # One member may still train: the group goes on whole.
    assert book.state("s/0/3") is GroupState.READY


def test_only_groups_to_train_on_are_filtered() -> None:
    book = Notebook(Laws(filters=ZERO_VARIANCE))
    book.open("held-out/0/0", purpose=Purpose.EVAL)
    for member in range(2):
        book.write("held-out/0/0", member, reward=1.0)
    assert book.state("held-out/0/0") is GroupState.READY


def test_members_that_failed_are_not_compared() -> None:
    book = Notebook(Laws(filters=ZERO_VARIANCE))
    book.open("s/0/0", size=3)
    book.write("s/0/0", 0, reward=1.0)
    book.write("s/0/0", 1, reward=1.0)
    book.write("s/0/0", 2, status=RolloutStatus.ENV_ERROR)
    assert reason(book, "s/0/0") == "filtered:zero_variance"


def test_nobody_annotates_a_group_that_will_not_train() -> None:
    book = Notebook(Laws(annotations=("judge",), filters=ZERO_VARIANCE))
    fill(book, "s/0/0", [1.0, 1.0])
    fill(book, "s/0/1", [0.0, 1.0])
    assert (book.state("s/0/0"), book.state("s/0/1")) == (GroupState.DROPPED, GroupState.COMPLETE)
    for member in range(2):
        uid = f"s/0/1:{member}:0"
        note = AnnotationRecord(run="run", rollout_uid=uid, group_id="", name="judge", step=None, uid=f"note {uid}", digest="d")
        book.do(law.annotate(book.ledger, book, note, Payload(run="run", uid=note.uid, content_type="json", body=b"", digest="d"), 0.0))
    assert book.state("s/0/1") is GroupState.READY


def test_a_stricter_lag_holds_at_the_cut() -> None:
    book = Notebook(Laws(max_lag=2, filters={"staleness": {"max_lag": 0}}))
    term = book.learner()
    fill(book, "s/0/0", [0.0, 1.0])
    fill(book, "s/0/1", [0.0, 1.0])
    book.cut(0, term)
    book.record(0, term)
    assert isinstance(book.cut(1, term), law.Wait)
    assert reason(book, "s/0/1") == "stale"
    # One that is complete only now, though still fresh enough to be accepted.
    fill(book, "s/0/2", [0.0, 1.0], version=0)
    assert reason(book, "s/0/2") == "filtered:staleness"
    fill(book, "s/0/3", [0.0, 1.0], version=1)
    assert book.state("s/0/3") is GroupState.READY


@pytest.mark.parametrize(
    "filters, message",
    [
        ({"zero_varianc": {}}, r"laws\.filters\.zero_varianc: unknown"),
        ({"os:system": {}}, r"laws\.filters\.os:system: unknown"),
        ({"over_long": {}}, r"laws\.filters\.over_long\.max_tokens is missing"),
        ({"over_long": {"max_token": 3}}, r"laws\.filters\.over_long\.max_token is unknown"),
        ({"staleness": {"max_lag": -1}}, r"max_lag must be 0 or more"),
    ],
)
def test_laws_with_impossible_filters_are_refused(filters: dict[str, dict[str, float]], message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        Notebook(Laws(filters=filters))
