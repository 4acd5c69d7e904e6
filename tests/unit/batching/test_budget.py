from collections.abc import Iterator

import pytest

from penstock.batching import Candidate, Choice, Short, choose


def queue(prefix: str, *costs: int) -> list[Candidate]:
    return [Candidate(f"{prefix}{index}", cost) for index, cost in enumerate(costs)]


def chosen(result: Choice | Short) -> Choice:
    assert isinstance(result, Choice), result
    return result


def test_the_largest_deficit_is_served_and_ties_go_by_name() -> None:
    # Shares 60 and 40. Deficits: a0 (60 -> 30), b0 (40 -> 20), a1 (30 -> 0), b1 (20 -> 0).
    result = chosen(choose({"a": queue("a", 30, 30, 30), "b": queue("b", 20, 20, 20)}, budget_tokens=100, fractions={"a": 0.6, "b": 0.4}))
    assert result.ids == ("a0", "b0", "a1", "b1")
    assert result.used == {"a": 60, "b": 40}
    assert result.carry == {"a": 0.0, "b": 0.0}
    tied = chosen(choose({"b": queue("b", 50), "a": queue("a", 50)}, budget_tokens=100))
    assert tied.ids == ("a0", "b0")


def test_a_group_that_does_not_fit_ends_its_environment_and_is_not_overtaken() -> None:
    result = chosen(choose({"a": queue("a", 60, 50, 1)}, budget_tokens=100))
    assert result.ids == ("a0",)
    assert result.carry == {"a": 40.0}


def test_the_last_group_may_overdraw_and_the_debt_is_carried() -> None:
    first = chosen(choose({"a": queue("a", 70, 70), "b": queue("b", 30, 30)}, budget_tokens=100))
    assert first.ids == ("a0", "b0")
    assert first.carry == {"a": -20.0, "b": 20.0}
    # Goals are now 30 and 70: b goes first and gets two groups, and a's next group of 70 does not fit beside them.
    second = chosen(choose({"a": queue("a", 70), "b": queue("b", 30, 30, 30)}, budget_tokens=100, carry=first.carry))
    assert second.ids == ("b0", "b1", "b2")
    assert second.carry == {"a": 30.0, "b": -20.0}


def test_an_environment_without_a_ready_group_blocks_the_batch() -> None:
    assert choose({"a": queue("a", 50), "b": []}, budget_tokens=100) == Short(environment="b")
    assert choose({"a": queue("a", 10)}, budget_tokens=100) == Short(environment="a")


def test_an_environment_that_only_the_fractions_name_is_waited_for() -> None:
    assert choose({"a": queue("a", 50)}, budget_tokens=100, fractions={"a": 0.5, "b": 0.5}) == Short(environment="b")


def test_a_full_budget_waits_for_nobody() -> None:
    result = chosen(choose({"a": queue("a", 100), "b": []}, budget_tokens=100, fractions={"a": 0.6, "b": 0.4}))
    assert result.ids == ("a0",)
    assert result.carry == {"a": -40.0, "b": 40.0}


def test_spilling_gives_the_unmet_share_to_the_others_and_still_owes_it() -> None:
    queues = {"a": queue("a", *[10] * 20), "b": queue("b", 10), "c": queue("c", *[10] * 20)}
    result = chosen(choose(queues, budget_tokens=100, fractions={"a": 0.4, "b": 0.4, "c": 0.2}, spill=True))
    # b is 30 short; a and c take 20 and 10 of it. They owe nothing for the gift.
    assert result.used == {"a": 60, "b": 10, "c": 30}
    assert result.carry == {"a": 0.0, "b": 30.0, "c": 0.0}


def test_spilling_with_nothing_ready_anywhere_is_short() -> None:
    assert choose({"a": [], "b": []}, budget_tokens=100, spill=True) == Short(environment=None)
    assert choose({}, budget_tokens=100) == Short(environment=None)


def test_a_partial_batch_is_taken_when_spilling_tokens_but_never_when_a_number_of_groups_is_asked_for() -> None:
    assert chosen(choose({"a": queue("a", 30)}, budget_tokens=100, spill=True)).ids == ("a0",)
    assert choose({"a": queue("a", 30)}, num_groups=2, spill=True) == Short(environment=None)


def test_a_group_bigger_than_the_whole_budget_is_set_aside_and_never_waited_for() -> None:
    result = chosen(choose({"a": queue("a", 101, 60, 102, 30)}, budget_tokens=90))
    assert result.ids == ("a1", "a3")
    assert result.too_big == ("a0", "a2")
    assert choose({"a": queue("a", 101)}, budget_tokens=100) == Short(environment="a", too_big=("a0",))


def test_environments_without_a_fraction_share_what_is_left() -> None:
    queues = {name: queue(name, *[5] * 20) for name in "abc"}
    assert chosen(choose(queues, budget_tokens=100, fractions={"a": 0.5})).used == {"a": 50, "b": 25, "c": 25}
    assert chosen(choose(queues, budget_tokens=90)).used == {"a": 30, "b": 30, "c": 30}
    nothing_left = chosen(choose(queues, budget_tokens=100, fractions={"a": 1.0}))
    assert nothing_left.used == {"a": 100, "b": 0, "c": 0}
    assert nothing_left.carry == {"a": 0.0}


def test_spilling_reaches_environments_without_a_share() -> None:
    result = chosen(choose({"a": queue("a", 40), "b": queue("b", *[10] * 9)}, budget_tokens=100, fractions={"a": 1.0}, spill=True))
    assert result.used == {"a": 40, "b": 60}
    assert result.carry == {"a": 60.0}


def test_the_unallocated_share_is_spread_or_left_or_given_to_the_newest() -> None:
    def queues() -> dict[str, list[Candidate]]:
        return {
            "a": [Candidate(f"a{index}", 10, (1, index)) for index in range(12)],
            "b": [Candidate(f"b{index}", 10, (2, index)) for index in range(12)],
        }

    fractions = {"a": 0.3, "b": 0.2}
    assert chosen(choose(queues(), budget_tokens=100, fractions=fractions)).used == {"a": 60, "b": 40}
    assert chosen(choose(queues(), budget_tokens=100, fractions=fractions, unallocated="none")).used == {"a": 30, "b": 20}
    newest = chosen(choose(queues(), budget_tokens=100, fractions=fractions, unallocated="newest"))
    assert newest.used == {"a": 30, "b": 70}
    assert newest.carry == {"a": 0.0, "b": 0.0}


def test_the_newest_of_all_is_found_among_next_groups_that_fit() -> None:
    queues = {
        "a": [Candidate("a0", 40, (1, 0)), Candidate("a1", 30, (1, 5))],
        "b": [Candidate("b0", 45, (9, 9))],
        "c": [Candidate("c0", 10, (1, 7)), Candidate("c1", 10, (0, 8))],
    }
    result = chosen(choose(queues, budget_tokens=80, fractions={"a": 0.5, "b": 0.0, "c": 0.0}, unallocated="newest"))
    # 40 are left: b0 is newest but too long, then c0, then a1 before c1 because its version is newer. Then the budget is full.
    assert result.ids == ("a0", "c0", "a1")


def test_an_unallocated_share_with_nothing_ready_is_short() -> None:
    assert choose({"a": queue("a", 50)}, budget_tokens=100, fractions={"a": 0.5}, unallocated="newest") == Short(environment=None)


def test_a_number_of_groups_is_met_exactly() -> None:
    queues = {"a": queue("a", *[1_000] * 9), "b": queue("b", *[7] * 9)}
    result = chosen(choose(queues, num_groups=5))
    assert result.ids == ("a0", "b0", "a1", "b1", "a2")
    assert result.carry == {"a": -0.5, "b": 0.5}
    assert chosen(choose(queues, num_groups=5, carry=result.carry)).used == {"a": 2, "b": 3}


def test_thirds_add_up_to_the_whole() -> None:
    queues = {name: queue(name, *[1] * 9) for name in "abc"}
    result = chosen(choose(queues, num_groups=9, fractions={"a": 1 / 3, "b": 1 / 3, "c": 0.333333}))
    assert result.used == {"a": 3, "b": 3, "c": 3}


def test_a_debt_to_somebody_who_has_gone_does_not_stop_the_rest() -> None:
    result = chosen(choose({"a": queue("a", 50, 50)}, budget_tokens=100, carry={"a": -100.0, "gone": 100.0}))
    assert result.ids == ("a0", "a1")
    assert result.carry["gone"] == 100.0


def test_carry_is_bounded_by_one_budget() -> None:
    carry: dict[str, float] = {}
    for _ in range(10):
        result = chosen(choose({"a": queue("a", *[10] * 20), "b": []}, budget_tokens=100, spill=True, carry=carry))
        carry = dict(result.carry)
    assert carry == {"a": 0.0, "b": 100.0}


def test_only_what_is_chosen_and_one_more_is_looked_at() -> None:
    seen = {"a": 0, "b": 0}

    def endless(name: str) -> Iterator[Candidate]:
        while True:
            seen[name] += 1
            yield Candidate(f"{name}{seen[name]}", 7)

    result = chosen(choose({"a": endless("a"), "b": endless("b")}, budget_tokens=1_000))
    assert seen["a"] + seen["b"] <= len(result.ids) + 2
    assert len(result.ids) == 142


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "one of budget_tokens and num_groups"),
        ({"budget_tokens": 5, "num_groups": 5}, "one of budget_tokens and num_groups"),
        ({"budget_tokens": 0}, "must be 1 or more, got 0"),
        ({"budget_tokens": 9, "fractions": {"a": 1.5}}, "fraction of a must be between 0 and 1, got 1.5"),
        ({"budget_tokens": 9, "fractions": {"a": float("nan")}}, "fraction of a must be between 0 and 1, got nan"),
        ({"budget_tokens": 9, "fractions": {"a": 0.7, "b": 0.7}}, "add up to 1.4"),
        ({"budget_tokens": 9, "fractions": {"a": 0.0}}, "no environment has a share"),
    ],
)
def test_impossible_requests_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        choose({"a": queue("a", 5)}, **arguments)  # type: ignore[arg-type]


def test_a_group_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="group a0 costs 0 tokens"):
        choose({"a": queue("a", 0)}, budget_tokens=5)
