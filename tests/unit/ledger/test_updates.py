"""Terms, cuts, outcomes, versions and checkpoints."""

from __future__ import annotations

import pytest

from penstock import ledger as law
from penstock.errors import ConflictError, FencedError, InvalidError, LimitError, UnknownError
from penstock.testing.ledger import Notebook
from penstock.types import CutRequest, GroupState, Laws, Plan, Purpose


def planned(plan: Plan | law.Wait) -> list[str]:
    assert isinstance(plan, Plan), plan
    return [group.id for group in plan.groups]


def test_a_cut_binds_groups_and_asking_again_gives_the_same_plan() -> None:
    book = Notebook()
    book.fill("s/0/0")
    book.fill("s/0/1")
    book.learner()
    plan = book.cut(0)
    assert planned(plan) == ["s/0/0"]
    assert book.state("s/0/0") is GroupState.BOUND
    assert book.cut(0) == plan
    assert book.cut(0, groups_per_update=2) == plan


def test_an_update_is_cut_after_the_outcome_of_the_one_before() -> None:
    book = Notebook()
    book.fill("s/0/0")
    book.fill("s/0/1")
    book.learner()
    book.cut(0)
    with pytest.raises(ConflictError, match="before update 0"):
        book.cut(1)
    book.record(0)
    assert planned(book.cut(1)) == ["s/0/1"]


def test_a_cut_waits_while_too_little_is_ready() -> None:
    book = Notebook()
    book.learner()
    book.fill("s/0/0")
    assert isinstance(book.cut(0, groups_per_update=2), law.Wait)
    assert book.state("s/0/0") is GroupState.READY
    with pytest.raises(InvalidError, match="one of them"):
        book.cut(0, groups_per_update=2, budget_tokens=5)


def test_the_oldest_version_is_cut_first_or_the_newest_if_asked_for() -> None:
    book = Notebook(Laws(max_lag=5))
    book.learner()
    book.fill("s/0/0")
    book.cut(0)
    book.record(0)
    book.fill("s/0/1", version=1)
    book.fill("s/0/2", version=0)
    book.fill("s/0/3", version=0)
    newest = law.cut(book.ledger, book, 1, 1, CutRequest(groups_per_update=1, order="newest"), 0.0)
    assert planned(newest.reply) == ["s/0/1"]
    assert planned(book.cut(1, groups_per_update=3)) == ["s/0/2", "s/0/3", "s/0/1"]


def test_a_group_that_has_gone_stale_is_dropped_at_the_cut_also_when_the_cut_waits() -> None:
    book = Notebook(Laws(max_lag=0))
    book.learner()
    book.fill("s/0/0")
    book.fill("s/0/1")
    book.cut(0)
    book.record(0)
    assert isinstance(book.cut(1), law.Wait)
    assert (book.state("s/0/1"), book.stored_groups["s/0/1"].reason) == (GroupState.DROPPED, "stale")
    assert book.state("s/0/0") is GroupState.BOUND


def test_a_group_over_the_whole_budget_is_dropped_at_once() -> None:
    book = Notebook()
    book.learner()
    book.fill("s/0/0", tokens=60)
    book.fill("s/0/1", tokens=10)
    assert isinstance(book.cut(0, budget_tokens=100), law.Wait)
    assert book.stored_groups["s/0/0"].reason == "over_budget"
    book.fill("s/0/2", tokens=45)
    assert planned(book.cut(0, budget_tokens=100)) == ["s/0/1"]
    assert book.state("s/0/2") is GroupState.READY


def test_a_cut_does_not_wait_for_an_environment_whose_credits_are_all_in_ready_groups() -> None:
    book = Notebook(Laws(max_lag=0, credit_tokens=100))
    book.learner()
    book.fill("s/0/0", tokens=45)
    with pytest.raises(LimitError, match="no credit"):
        book.open("s/0/1")
    assert planned(book.cut(0, budget_tokens=100)) == ["s/0/0"]
    book.record(0)
    book.publish(1)
    assert book.open("s/0/1").created
    assert isinstance(book.cut(1, budget_tokens=100), law.Wait)


def test_an_open_group_that_the_next_version_would_make_stale_can_hold_up_the_cut() -> None:
    for endangered, waits in (("wait", True), ("drop", False)):
        book = Notebook(Laws(max_lag=0, endangered=endangered))  # type: ignore[arg-type]
        book.learner()
        book.fill("s/0/0")
        book.open("s/0/1")
        book.write("s/0/1", 0)
        assert isinstance(book.cut(0), law.Wait) == waits


def test_an_applied_outcome_allocates_the_next_version_and_a_skip_none() -> None:
    book = Notebook()
    book.learner()
    for update in range(3):
        book.fill(f"s/0/{update}", version=min(update, 1))
        book.cut(update)
        book.record(update, skipped="mismatch" if update == 1 else None)
    assert [book.ledger.outcomes[update].version for update in range(3)] == [1, None, 2]
    assert (book.state("s/0/1"), book.stored_groups["s/0/1"].reason) == (GroupState.DROPPED, "skipped:mismatch")


def test_an_outcome_that_exists_is_compared_and_never_changed() -> None:
    book = Notebook()
    book.learner()
    book.fill("s/0/0")
    with pytest.raises(UnknownError, match="never cut"):
        book.record(0)
    book.cut(0)
    first = book.record(0, digest="a").outcome
    again, other = book.record(0, digest="a"), book.record(0, digest="b")
    assert (again.outcome, again.replayed, again.equal) == (first, True, True)
    assert (other.outcome, other.replayed, other.equal) == (first, True, False)
    assert book.ledger.newest_version == 1


def test_credits_come_back_when_the_weights_are_live_and_only_once() -> None:
    book = Notebook()
    book.learner()
    book.fill("s/0/0", tokens=10)
    book.cut(0)
    book.record(0)
    held = book.ledger.counts_of("env", Purpose.TRAIN)
    assert held.held_tokens == 20
    book.publish(1)
    assert held.held_tokens == 0
    book.publish(1)
    assert held.held_tokens == 0
    with pytest.raises(UnknownError, match="never recorded"):
        book.publish(2)


def test_a_kept_checkpoint_makes_the_groups_of_its_updates_spent() -> None:
    book = Notebook(Laws(max_lag=9))
    book.learner()
    for update in range(2):
        book.fill(f"s/0/{update}")
        book.cut(update)
        book.record(update)
    book.keep(1)
    assert (book.state("s/0/0"), book.state("s/0/1")) == (GroupState.SPENT, GroupState.BOUND)
    with pytest.raises(ConflictError, match="no outcome"):
        book.keep(3)
    with pytest.raises(ConflictError, match="digest"):
        book.keep(1, digest="other")
    book.keep(2)
    assert book.state("s/0/1") is GroupState.SPENT
    book.do(law.retire(book.ledger, 1, 1))
    with pytest.raises(ConflictError, match="newest"):
        law.retire(book.ledger, 2, 1)


def test_a_second_learner_is_refused_while_the_owner_renews_and_fences_it_afterwards() -> None:
    book = Notebook()
    assert book.learner("one") == 1
    assert book.learner("one") == 1
    book.now = 9.0
    with pytest.raises(ConflictError, match="belongs to one"):
        book.learner("two")
    book.do(law.renew_term(book.ledger, 1, book.now))
    book.now = 18.9
    with pytest.raises(ConflictError, match="belongs to one"):
        book.learner("two")
    assert book.learner("two", replaces="one") == 2
    book.fill("s/0/0")
    book.cut(0, 2)
    for late in (
        lambda: book.cut(0, 1),
        lambda: book.record(0, 1),
        lambda: book.publish(0, 1),
        lambda: book.keep(0, 1),
        lambda: law.renew_term(book.ledger, 1, book.now),
    ):
        with pytest.raises(FencedError, match="term 1 is over"):
            late()


def test_an_expired_term_may_be_taken_over() -> None:
    book = Notebook()
    book.learner("one")
    book.now = 10.0
    assert book.learner("two") == 2


def test_a_new_term_replays_the_same_plans() -> None:
    book = Notebook()
    book.learner("one")
    book.keep(0)
    plans = []
    for update in range(2):
        book.fill(f"s/0/{update}", version=update)
        plans.append(book.cut(update))
        book.record(update)
    term = book.learner("two", checkpoint=0, replaces="one")
    assert [book.cut(update, term) for update in range(2)] == plans
    assert book.record(0, term).replayed
    assert book.record(1, term).equal


def test_a_recut_frees_the_groups_and_keeps_the_versions() -> None:
    book = Notebook(Laws(max_lag=9))
    book.learner("one")
    for update in range(2):
        book.fill(f"s/0/{update}")
        book.cut(update)
        book.record(update)
    book.keep(1)
    term = book.learner("two", checkpoint=1, resume="recut", replaces="one")
    assert (book.state("s/0/0"), book.state("s/0/1")) == (GroupState.SPENT, GroupState.READY)
    assert book.ledger.next_update == 1
    book.fill("s/0/2", version=2)
    assert planned(book.cut(1, term, groups_per_update=2)) == ["s/0/1", "s/0/2"]
    assert book.record(1, term, digest="other").outcome.version == 3
    with pytest.raises(ConflictError, match="newest checkpoint"):
        book.keep(2, term)
        book.learner("three", checkpoint=1, resume="recut", replaces="two")


def test_a_term_starts_from_a_kept_checkpoint() -> None:
    book = Notebook()
    with pytest.raises(UnknownError, match="update_3"):
        book.learner(checkpoint=3)


def test_replayed_weights_that_differ_get_a_version_of_their_own() -> None:
    book = Notebook()
    book.learner()
    book.fill("s/0/0")
    book.cut(0)
    book.record(0, digest="a")
    forked = book.do(law.fork(book.ledger, 0, 1, "b", 0.0))
    assert (forked.version, forked.fork) == (2, True)
    assert book.do(law.fork(book.ledger, 0, 1, "b", 0.0)) == forked
    assert book.ledger.versions[1].digest == "a"


def test_a_group_with_reuse_left_is_cut_again_in_a_later_update_and_then_spent() -> None:
    book = Notebook(Laws(max_reuse=2, max_lag=9))
    book.learner()
    book.fill("s/0/0")
    for update in range(2):
        assert planned(book.cut(update)) == ["s/0/0"]
        book.record(update)
    assert isinstance(book.cut(2), law.Wait)
    book.keep(2)
    assert book.state("s/0/0") is GroupState.SPENT


def test_a_reused_group_that_goes_stale_is_spent_and_not_dropped() -> None:
    book = Notebook(Laws(max_reuse=2, max_lag=0))
    book.learner()
    book.fill("s/0/0")
    book.cut(0)
    book.record(0)
    assert isinstance(book.cut(1), law.Wait)
    assert book.state("s/0/0") is GroupState.BOUND
    book.keep(1)
    assert book.state("s/0/0") is GroupState.SPENT


def test_a_run_opens_with_its_initial_weights_and_only_with_those() -> None:
    book = Notebook()
    assert (book.ledger.newest_version, book.ledger.versions[0].digest) == (0, "weights-0")
    assert book.do(law.open_run(book.ledger, "run", Laws(max_lag=3), "weights-0", 1.0)).laws.max_lag == 3
    with pytest.raises(ConflictError, match="weights-0"):
        law.open_run(book.ledger, "run", Laws(), "foreign", 1.0)


def test_a_version_that_a_recut_has_undone_gives_no_credit_back_for_the_plan_that_took_its_place() -> None:
    book = Notebook(Laws(max_lag=9))
    book.learner("one")
    book.fill("s/0/0")
    book.cut(0)
    book.record(0)
    term = book.learner("two", resume="recut", replaces="one")
    book.cut(0, term)
    held = book.ledger.counts_of("env", Purpose.TRAIN)
    assert held.held_tokens == 20
    book.publish(1, term)
    assert held.held_tokens == 20
    book.record(0, term, digest="other")
    book.publish(2, term)
    assert held.held_tokens == 0


def test_a_cut_by_shares_that_are_none_is_refused() -> None:
    book = Notebook()
    book.learner()
    with pytest.raises(InvalidError, match=r"fractions\.a"):
        book.cut(0, groups_per_update=1, fractions={"a": 2.0})


def test_retiring_twice_is_retiring_once() -> None:
    book = Notebook(Laws(max_lag=9))
    book.learner()
    book.keep(0)
    book.fill("s/0/0")
    book.cut(0)
    book.record(0)
    book.keep(1)
    for _ in range(2):
        assert not book.do(law.retire(book.ledger, 0, 1)).kept


def test_an_outcome_is_one_of_two_and_updates_count_from_zero() -> None:
    book = Notebook()
    book.fill("s/0/0")
    book.learner()
    book.cut(0)
    with pytest.raises(InvalidError, match="send one of the two"):
        law.record(book.ledger, book, 0, 1, 0.0, digest="weights", skipped="nan")
    with pytest.raises(InvalidError, match="counts from 0, got -1"):
        law.keep(book.ledger, book, -1, "digest", 1, 0.0)
    with pytest.raises(InvalidError, match="counts from 0, got -1"):
        law.retire(book.ledger, -1, 1)
    with pytest.raises(ConflictError, match="update -1"):
        book.cut(-1)
