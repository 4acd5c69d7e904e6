"""Groups that are formed by arrival."""

from __future__ import annotations

import pytest

from penstock import ledger as law
from penstock.errors import ConflictError, InvalidError
from penstock.ledger.arrivals import ArrivalRules
from penstock.testing.arrivals import Tray
from penstock.types import AnnotationRecord, CutRequest, LeaseRequest, Payload


def test_the_first_items_of_an_instance_are_pass_0_and_the_next_pass_1() -> None:
    tray = Tray(group_size=2)
    for uid in "wxyz":
        tray.write(uid)
    assert [tray.stored_rollouts[uid].group_id for uid in "wxyz"] == ["a/0", "a/0", "a/1", "a/1"]
    assert [tray.stored_rollouts[uid].member for uid in "wxyz"] == [0, 1, 0, 1]
    assert (tray.state("a/0"), tray.state("a/1")) == ("ready", "ready")


@pytest.mark.parametrize("ends", ["read", "dropped"])
def test_a_full_group_that_ends_leaves_the_next_pass_where_it_is(ends: str) -> None:
    tray = Tray(group_size=2)
    for uid in "wxy":
        tray.write(uid)
    assert (tray.state("a/0"), tray.state("a/1")) == ("ready", "open")
    tray.read("a/0") if ends == "read" else tray.read(a_0="odd")
    tray.write("z")
    assert (tray.stored_rollouts["z"].group_id, tray.state("a/1")) == ("a/1", "ready")


def test_instances_do_not_mix() -> None:
    tray = Tray(group_size=2)
    for uid, instance in (("1", "a"), ("2", "b"), ("3", "a"), ("4", "b")):
        tray.write(uid, instance)
    assert {group.id: group.usable for group in tray.stored_groups.values()} == {"a/0": 2, "b/0": 2}


def test_the_same_instance_of_another_task_is_another_group() -> None:
    tray = Tray(group_size=2)
    tray.write("1", environment="math")
    tray.write("2", environment="code")
    tray.write("3", environment="math")
    tray.write("4", environment="code")
    assert {group.id: group.environment for group in tray.stored_groups.values()} == {"a/0": "math", "a/1": "code"}
    assert (tray.state("a/0"), tray.state("a/1")) == ("ready", "ready")


def test_an_item_that_comes_twice_fills_no_second_place() -> None:
    tray = Tray(group_size=2)
    assert not tray.write("x").duplicate
    assert tray.write("x").duplicate
    assert tray.state("a/0") == "open"
    with pytest.raises(ConflictError, match="stored with digest"):
        tray.write("x", content="other")


def test_an_item_takes_no_annotation_and_its_group_goes_on() -> None:
    tray = Tray(group_size=3)
    tray.write("x")
    note = AnnotationRecord(run="run", rollout_uid="x", group_id="", name="judge", step=None, uid="n", digest="d")
    with pytest.raises(ConflictError, match="x is an item of group a/0"):
        law.annotate(tray.ledger, tray, note, Payload(run="run", uid="n", content_type="json", body=b"", digest="d"), tray.now)
    assert tray.state("a/0") == "open"


def test_failed_items_count_towards_the_size_of_a_group() -> None:
    tray = Tray(group_size=3)
    tray.write("x", reward=None)
    tray.write("y", reward=-1.0)
    assert tray.write("z", reward=0.5).finished is not None
    group = tray.stored_groups["a/0"]
    assert group.usable == 1
    assert group.arrival is not None
    assert group.arrival.rewards == (None, -1.0, 0.5)
    assert [tray.stored_members["a/0", member].reason for member in range(3)] == ["null_reward", "negative_reward", None]


def test_a_late_item_of_a_group_that_was_read_is_stored_and_reopens_nothing() -> None:
    tray = Tray(group_size=4, min_valid_group_size_ratio=0.5)
    for uid in "wx":
        tray.write(uid)
    tray.read("a/0")
    assert tray.write("y").late
    assert tray.write("z").late
    assert tray.state("a/0") == "spent"
    assert [tray.stored_members["a/0", member].reason for member in range(4)] == [None, None, "late", "late"]
    # The first four are pass 0, closed or not.
    assert not tray.write("v").late
    assert tray.stored_rollouts["v"].group_id == "a/1"
    assert law.imbalance(tray.ledger) == 0


def test_a_group_with_enough_items_takes_the_others_until_it_is_read() -> None:
    tray = Tray(group_size=4, min_valid_group_size_ratio=0.5)
    for uid in "wxy":
        tray.write(uid)
    group = tray.stored_groups["a/0"]
    assert (group.state, group.usable) == ("ready", 3)
    assert group.arrival is not None
    assert group.arrival.rewards == (1.0, 1.0, 1.0)
    assert tray.ledger.trays.num_items == 3


def test_silence_finishes_a_group_counted_from_its_last_item() -> None:
    tray = Tray(group_size=10, group_timeout_seconds=300.0)
    for number in range(7):
        tray.now = 100.0 * number
        tray.write(f"u{number}")
    tray.now = 899.0
    assert tray.time_out() == ()
    tray.now = 900.0
    (group,) = tray.time_out()
    assert group.state == "ready"
    assert group.arrival is not None
    assert group.arrival.timed_out


def test_a_group_that_silence_has_finished_takes_no_more_though_it_has_room() -> None:
    tray = Tray(group_size=3, group_timeout_seconds=300.0, min_timeout_group_size_ratio=0.5)
    tray.write("x")
    tray.write("y")
    tray.now = 300.0
    tray.time_out()
    assert tray.write("late").late
    group = tray.stored_groups["a/0"]
    assert group.arrival is not None
    assert (group.state, group.usable, group.arrival.rewards) == ("ready", 2, (1.0, 1.0))
    assert not tray.write("next").late
    assert tray.stored_rollouts["next"].group_id == "a/1"


def test_a_group_that_is_written_to_again_does_not_hide_the_silence_of_others() -> None:
    tray = Tray(group_size=3, group_timeout_seconds=300.0)
    for now, instance in ((0.0, "a"), (100.0, "b"), (200.0, "a")):
        tray.now = now
        tray.write(f"u{now}", instance)
    tray.now = 400.0
    assert [group.id for group in tray.time_out()] == ["b/0"]
    tray.now = 500.0
    assert [group.id for group in tray.time_out()] == ["a/0"]


def test_a_silent_group_with_too_few_items_is_dropped_with_a_reason() -> None:
    tray = Tray(group_size=10, group_timeout_seconds=300.0)
    for number in range(6):
        tray.write(f"u{number}")
    tray.now = 300.0
    tray.time_out()
    assert tray.state("a/0") == "dropped(timeout)"
    assert tray.write("late").late
    assert tray.ledger.trays.num_items == 0


def test_groups_that_time_out_together_have_different_places_in_the_order() -> None:
    tray = Tray(group_size=1, group_timeout_seconds=1.0)
    tray.rules = ArrivalRules(group_size=2, group_timeout_seconds=1.0, min_timeout_group_size_ratio=0.5)
    for uid, instance in (("1", "a"), ("2", "b"), ("3", "c")):
        tray.write(uid, instance)
    tray.now = 1.0
    assert [group.ready_order for group in tray.time_out()] == [0, 1, 2]


def test_a_read_spends_its_groups_under_its_id_and_drops_what_is_refused() -> None:
    tray = Tray(group_size=1)
    for uid, instance in (("1", "a"), ("2", "b"), ("3", "c")):
        tray.write(uid, instance)
    lease = tray.read("a/0", b_0="equal_rewards")
    assert lease is not None
    assert (lease.state, [group.id for group in lease.groups]) == ("settled", ["a/0"])
    assert [tray.state(f"{instance}/0") for instance in "abc"] == ["spent", "dropped(equal_rewards)", "ready"]
    assert tray.stored_groups["a/0"].lease == "r1"
    with pytest.raises(ConflictError, match="made before"):
        tray.read("c/0")
    with pytest.raises(ConflictError, match="gone"):
        tray.read("a/0", read_id="r2")
    assert law.imbalance(tray.ledger) == 0


def test_a_leased_group_cannot_be_read() -> None:
    tray = Tray(group_size=1)
    tray.write("1")
    tray.do(law.take_lease(tray.ledger, tray, "lease", "somebody", LeaseRequest(), 0.0))
    with pytest.raises(ConflictError, match="bound"):
        tray.read("a/0")


def test_a_learner_is_told_why_it_cannot_have_them() -> None:
    tray = Tray(group_size=1)
    tray.write("1")
    term = tray.do(law.take_term(tray.ledger, tray, "learner", 0, 0.0)).term
    waiting = tray.do(law.cut(tray.ledger, tray, 0, term, CutRequest(groups_per_update=1), 0.0))
    assert isinstance(waiting, law.Wait)
    assert "1 without token ids and versions, which came by the compatible routes" in waiting.reason
    assert tray.state("a/0") == "ready"


def test_everything_is_counted_as_it_is_stored() -> None:
    tray = Tray(group_size=2)
    for uid, instance, reward in (("1", "a", 1.0), ("2", "a", None), ("3", "b", 0.0)):
        tray.write(uid, instance, reward)
    counted = law.recount(tray.stored_groups.values(), tray.stored_members.values())
    assert counted == law.balance(tray.ledger)
    assert counted[0].members == {"accepted": 2, "failed(null_reward)": 1}
    assert (tray.ledger.trays.num_items, law.imbalance(tray.ledger)) == (3, 0)


def test_many_passes_are_found_again_without_being_remembered() -> None:
    tray = Tray(group_size=1)
    for number in range(21):
        tray.write(f"u{number}")
    assert tray.stored_rollouts["u20"].group_id == "a/20"


@pytest.mark.parametrize(
    "rules",
    [{"group_size": 0}, {"min_valid_group_size_ratio": 1.5}, {"min_timeout_group_size_ratio": float("nan")}, {"group_timeout_seconds": 0.0}],
)
def test_rules_that_nobody_can_keep_are_refused(rules: dict[str, float]) -> None:
    with pytest.raises(InvalidError):
        ArrivalRules(**rules)  # type: ignore[arg-type]


def test_a_group_that_was_handed_out_and_came_back_takes_no_more_items() -> None:
    tray = Tray(group_size=3, min_valid_group_size_ratio=0.7)
    tray.write("u0")
    assert tray.write("u1").finished is not None
    tray.do(law.take_lease(tray.ledger, tray, "l", "c", LeaseRequest(), tray.now))
    assert tray.write("u2").late
    tray.do(law.release_lease(tray.ledger, tray, "l", "c", tray.now))
    assert tray.state("a/0") == "ready"
    following = tray.write("u3").item
    assert following is not None and (following.group_id, following.member) == ("a/1", 0)
