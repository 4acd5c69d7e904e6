"""Positions, splits and listed problems."""

from __future__ import annotations

from collections import Counter

import pytest

from penstock.errors import ConfigError, InvalidError
from penstock.problems import ListedProblems, Position, Split, group_id, parse_group_id, split_of
from penstock.types import Problem


def test_positions_walk_through_passes() -> None:
    walked = [Position()]
    for _ in range(4):
        walked.append(walked[-1].after(2))
    assert [(place.pass_, place.index) for place in walked] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]
    assert Position(index=10**9).after(None) == Position(index=10**9 + 1)


def test_a_group_id_spells_its_position_and_back() -> None:
    position = Position(pass_=3, index=14)
    assert group_id("a/b:train", position) == "a/b:train/3/14"
    assert parse_group_id("a/b:train/3/14") == ("a/b:train", position)


@pytest.mark.parametrize("bad", ["", "source", "source/1", "source/1/x", "source/-1/2", "/1/2", "source/1/²"])
def test_what_is_no_position_is_refused(bad: str) -> None:
    with pytest.raises(InvalidError, match="source/pass/index"):
        parse_group_id(bad)


def test_a_split_depends_on_the_problem_alone_and_holds_out_about_the_share_asked_for() -> None:
    keys = [str(number) for number in range(8000)]
    sides = [split_of(key, held_out_one_in=8) for key in keys]
    assert sides == [split_of(key, held_out_one_in=8) for key in keys]
    assert 850 <= Counter(sides)[Split.HELD_OUT] <= 1150


def test_listed_problems_come_in_order_first_and_each_once_in_every_later_pass() -> None:
    problems = [Problem(id=f"p{number}", environment="e") for number in range(20)]
    source = ListedProblems(name="train", problems=problems, seed=3)
    passes = [[source.problem(pass_, index).id for index in range(source.size)] for pass_ in range(3)]
    assert passes[0] == [problem.id for problem in problems]
    assert sorted(passes[1]) == sorted(passes[2]) == sorted(passes[0])
    assert len({tuple(one) for one in passes}) == 3
    again = ListedProblems(name="train", problems=problems, seed=3)
    assert [again.problem(2, index).id for index in range(20)] == passes[2]


def test_an_empty_list_is_refused() -> None:
    with pytest.raises(ConfigError, match="no problems"):
        ListedProblems(name="train", problems=[])
