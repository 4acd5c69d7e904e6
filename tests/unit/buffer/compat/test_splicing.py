from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.buffer.compat import defaults
from penstock.buffer.compat.splicing import spliced

KEYS = st.sampled_from(["reward", "raw_reward", "my_reward", 'a "reward"', "note", "é", "\u4e2d"])
VALUES = st.sampled_from(["reward", 'the "reward": 3,', "true", 0.5, None, {"reward": 7}, ["reward"], "\u4e2d"])
NUMBERS = st.one_of(st.sampled_from([0, 1, 0.0, 1.0, -0.0, True, False, None, -1]), st.floats(0, 1))


def spelled(reward: Any, before: dict[str, Any], after: dict[str, Any], indent: int | None, plain: bool) -> bytes:
    named = {key: value for key, value in before.items() if key != "reward"} | {"reward": reward}
    named |= {key: value for key, value in after.items() if key not in named}
    return json.dumps(named, indent=indent, ensure_ascii=not plain).encode()


def one_by_one(bodies: list[bytes], rewards: tuple[float | None, ...], group_size: int, refused: tuple[int, ...] = ()) -> list[str]:
    """The slow way: each item is opened, and its fields are set."""
    shape = defaults.shape(rewards, refused, group_size, 0)
    assert not isinstance(shape, str)
    made = []
    for place in shape:
        item = json.loads(bodies[place.member])
        written = int(item["reward"]) if isinstance(item["reward"], bool) else item["reward"]
        item["reward"] = written if place.reward is None else place.reward
        if place.raw_reward is not None:
            item["raw_reward"] = written
        made.append(item)
    return sorted_by_key(made)


def sorted_by_key(items: list[dict[str, Any]]) -> list[str]:
    """To be compared as text: `True` equals 1, and `true` does not."""
    return [json.dumps(item, sort_keys=True) for item in items]


def at_once(bodies: list[bytes], rewards: tuple[float | None, ...], group_size: int, refused: tuple[int, ...] = ()) -> list[str]:
    return sorted_by_key(json.loads(b"[%b]" % spliced(rewards, refused, group_size, bodies)))


ITEM = st.tuples(NUMBERS, st.dictionaries(KEYS, VALUES, max_size=2), st.dictionaries(KEYS, VALUES, max_size=2), st.sampled_from([None, 1]), st.booleans())


@given(st.lists(ITEM, min_size=4, max_size=8))
def test_a_group_that_is_spelled_anew_at_once_holds_what_its_items_hold_one_by_one(items: list[Any]) -> None:
    bodies = [spelled(*item) for item in items]
    rewards = tuple(defaults.number(item[0]) for item in items)
    for group_size in (8, len(items)):
        assert at_once(bodies, rewards, group_size) == one_by_one(bodies, rewards, group_size)


@pytest.mark.parametrize(
    ("rewards", "refused"),
    [
        ((True, 0, 0.5), ()),
        ((1, False, 0.5), ()),
        ((0, False, 0.0), ()),
        ((1.0, None, 0.0), ()),
        ((1.0, -1.0, 0.0), ()),
        ((1.0, 7, 0.0, True), (1,)),
        ((1.0, 0.0, 0.5, 2), (3,)),
        ((None, True, 0.0, 0.5), (0,)),
    ],
)
def test_whatever_is_refused_or_padded_each_place_has_its_own_item(rewards: tuple[Any, ...], refused: tuple[int, ...]) -> None:
    numbers = tuple(defaults.number(reward) for reward in rewards)
    for extra in ({}, {"note": 'the "reward"'}):
        bodies = [json.dumps({"reward": reward, "place": place} | extra).encode() for place, reward in enumerate(rewards)]
        assert at_once(bodies, numbers, len(rewards), refused) == one_by_one(bodies, numbers, len(rewards), refused)


@pytest.mark.parametrize(
    "odd",
    [
        b'{"r\\u0065ward": 0, "note": "reward"}',
        b'{"reward": 0, "r\\u0061w_reward": 5}',
        b'{"reward": 0, "raw\\u005freward": 5}',
        b'{"note": "na\\u00efve", "reward": 0}',
        b'{"reward": 0, "raw_reward": 5}',
        b'{"reward": 1, "reward": 0}',
        b'{"note": "\\"reward", "reward"\n:\tfalse}',
        b'{"inner": {"reward": 1}, "reward": 0}',
    ],
)
def test_a_reward_that_is_hard_to_find_is_found(odd: bytes) -> None:
    bodies = [b'{"reward": 1.0}', odd]
    assert at_once(bodies, (1.0, 0.0), 2) == one_by_one(bodies, (1.0, 0.0), 2)


def test_bytes_beside_the_reward_stay_as_they_were_written() -> None:
    bodies = [b'{"x": 1.50, "reward" : 1e0}', b'{"reward":0,"y":"\\n\\u4e2d"}']
    new = b"%r" % (0.5 / (0.5 + 1e-8))
    expected = b'{"x": 1.50, "reward":%b,"raw_reward" : 1e0},{"reward":-%b,"raw_reward":0,"y":"\\n\\u4e2d"}' % (new, new)
    assert spliced((1.0, 0.0), (), 2, bodies) == expected


@given(st.integers(0, 9), st.integers(1, 9), st.integers(0, 9))
def test_how_many_items_are_served_is_known_without_their_rewards(num_kept: int, group_size: int, min_valid_items: int) -> None:
    shape = defaults.shape((0.0,) * num_kept, (), group_size, min_valid_items)
    assert defaults.num_placed(num_kept, group_size, min_valid_items) == (shape if isinstance(shape, str) else len(shape))
