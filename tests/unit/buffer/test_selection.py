"""Which stored rollouts somebody means."""

from __future__ import annotations

import pytest

from penstock.buffer.selection import Condition, parse_condition, select
from penstock.errors import InvalidError
from penstock.types import GroupRecord, GroupState, Purpose, RolloutRecord, RolloutStatus


def rollout(reward: float | None = 0.5, **facts: object) -> RolloutRecord:
    base = {"run": "r", "uid": "u", "group_id": "g", "member": 1, "retry": 0, "status": RolloutStatus.OK, "digest": "d", "reward": reward}
    return RolloutRecord(**(base | facts))  # type: ignore[arg-type]


def group(**facts: object) -> GroupRecord:
    base = {"run": "r", "id": "g", "environment": "env", "problem_id": "p", "purpose": Purpose.TRAIN, "size": 2, "seed": 0, "state": GroupState.READY}
    return GroupRecord(**(base | {"order": 0} | facts))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("word", "holds"),
    [
        ("reward>=0.5", True),
        ("reward > 0.5", False),
        ("reward<=0.5", True),
        ("reward<0.5", False),
        ("reward=0.5", True),
        ("reward!=0.5", False),
        ("member=1", True),
        ("uid=u", True),
        ("uid!=u", False),
        ("oldest_version>=0", False),
        ("oldest_version!=3", True),
    ],
)
def test_a_condition_compares_one_field(word: str, holds: bool) -> None:
    assert parse_condition(word).holds(rollout()) is holds


@pytest.mark.parametrize("word", ["reward", "reward>", "reward>x", "reward>inf", "colour=red", "=1", "rewards>=1"])
def test_a_condition_that_means_nothing_is_refused(word: str) -> None:
    with pytest.raises(InvalidError, match="where: "):
        parse_condition(word)


def test_a_value_may_have_any_character() -> None:
    assert parse_condition("failure=a=b>c") == Condition(field="failure", comparison="=", value="a=b>c")


def test_words_of_one_kind_are_alternatives_and_kinds_add_up() -> None:
    selection = select(environment=["env", "other"], state=["ready"], purpose=["train"], status=["ok", "truncated"], where=["reward>0", "retry=0"])
    assert selection.takes_group(group())
    assert not selection.takes_group(group(environment="third"))
    assert not selection.takes_group(group(state=GroupState.SPENT))
    assert not selection.takes_group(group(purpose=Purpose.EVAL))
    assert selection.takes_rollout(rollout())
    assert not selection.takes_rollout(rollout(0.0))
    assert not selection.takes_rollout(rollout(None))
    assert not selection.takes_rollout(rollout(retry=1))
    assert not selection.takes_rollout(rollout(status=RolloutStatus.INFRA_ERROR))


def test_nothing_said_means_everything() -> None:
    assert select().takes_group(group())
    assert select().takes_rollout(rollout(None))


@pytest.mark.parametrize(("kind", "word"), [("state", "lost"), ("purpose", "play"), ("status", "fine")])
def test_a_word_that_is_no_state_is_refused_with_those_that_are(kind: str, word: str) -> None:
    with pytest.raises(InvalidError, match=f"{kind}: '{word}' is none of "):
        select(**{kind: [word]})
