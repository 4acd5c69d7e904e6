"""Items as old clients send them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.buffer.compat.config import CompatConfig
from penstock.buffer.compat.intake import MOST_ITEMS, id_of, read_items
from penstock.buffer.intake import NOTE
from penstock.errors import ConfigError, InputError, InvalidError, MalformedError
from penstock.wire import MAX_DEPTH, check_id


def body(**fields: Any) -> bytes:
    return json.dumps({"uid": "u", "instance_id": "a", "messages": [], "reward": 1.0} | fields).encode()


def test_an_item_is_kept_as_its_bytes() -> None:
    written = b' {"uid": "u", "instance_id": "a", "messages": [], "reward": 1.0, "mine": [1, {"x": null}]} '
    (item,) = read_items(written, "math")
    assert item.body == written
    assert (item.uid, item.instance, item.environment, item.reward, item.kept) == ("u", "a", "math", 1.0, True)


@pytest.mark.parametrize(
    ("reward", "number", "kept", "failure"),
    [(True, 1.0, True, None), (False, 0.0, True, None), (None, None, False, "null_reward"), (-1, -1.0, False, "negative_reward"), (3, 3.0, False, None)],
)
def test_rewards_of_old_clients_are_understood(reward: Any, number: float | None, kept: bool, failure: str | None) -> None:
    (item,) = read_items(body(reward=reward), "t")
    assert (item.reward, item.kept, item.failure) == (number, kept, failure)


@pytest.mark.parametrize("reward", ["NaN", "Infinity", "-Infinity", "1e999", '"1"', '"nan"', "[1]", "{}"])
def test_a_reward_that_is_no_number_is_refused(reward: str) -> None:
    with pytest.raises(InvalidError, match="reward"):
        read_items(b'{"uid": "u", "instance_id": "a", "messages": [], "reward": %b}' % reward.encode(), "t")


@pytest.mark.parametrize("field", ["uid", "instance_id", "reward"])
def test_a_field_that_is_missing_is_named(field: str) -> None:
    fields = {"uid": "u", "instance_id": "a", "messages": [], "reward": 1.0}
    del fields[field]
    with pytest.raises(InvalidError, match=field):
        read_items(json.dumps(fields).encode(), "t")


@pytest.mark.parametrize("id", ["", "a\nb", "\u0007", 1.5, True, None, [], "x" * 5000])
def test_an_id_that_is_none_is_refused(id: Any) -> None:
    with pytest.raises(InvalidError, match="instance_id"):
        read_items(body(instance_id=id), "t")


@pytest.mark.parametrize("wrong", [b"", b"{", b"[]", b"1", b'"x"', b"null", b'{"uid": 1, "uid": 2}', b"\xff", b"[" * 40 + b"]" * 40])
def test_a_body_that_is_no_item_is_refused(wrong: bytes) -> None:
    with pytest.raises(InputError):
        read_items(wrong, "t")


def test_an_item_of_a_list_is_named_by_its_place() -> None:
    with pytest.raises(InvalidError, match="item 1: reward"):
        read_items(b"[" + body() + b"," + body(reward="x") + b"]", "t")
    with pytest.raises(MalformedError):
        read_items(b"[" + body() + b",]", "t")
    with pytest.raises(MalformedError, match="item 1: key 'uid' stands twice"):
        read_items(b"[" + body() + b',{"uid": 1, "uid": 2}]', "t")


def test_a_list_has_as_many_items_as_are_decided_at_once() -> None:
    assert len(read_items(b"[" + b",".join([body()] * MOST_ITEMS) + b"]", "t")) == MOST_ITEMS
    for wrong in (b"[" + b",".join([body()] * (MOST_ITEMS + 1)) + b"]", b" []"):
        with pytest.raises(InvalidError, match=f"a list of 1 to {MOST_ITEMS} items"):
            read_items(wrong, "t")


def test_a_list_counts_among_what_is_nested() -> None:
    deep = body(extra_info=json.loads("[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1)))
    read_items(deep, "t")
    with pytest.raises(MalformedError, match="deeper"):
        read_items(b"[" + deep + b"]", "t")


def test_items_of_a_list_keep_their_own_bytes() -> None:
    first, second = read_items(b"[" + body(uid="x") + b" , " + body(uid="y") + b"]", "t")
    assert (first.body, second.body) == (body(uid="x"), body(uid="y"))


def test_integers_and_free_text_are_ids() -> None:
    assert [read_items(body(instance_id=id), "t")[0].problem_id for id in (17, "a b", "é", "../x", "50%")] == [
        "17",
        "a%20b",
        "%C3%A9",
        ".%2E/x",
        "50%25",
    ]


@given(st.text(min_size=1, max_size=300).filter(lambda text: text.isprintable()), st.text(min_size=1, max_size=300).filter(lambda text: text.isprintable()))
def test_every_text_has_an_id_of_its_own(one: str, other: str) -> None:
    check_id(f"{id_of(one)}/{10**9}", "group")
    assert (id_of(one) == id_of(other)) == (one == other)


def test_no_item_lies_where_annotations_do() -> None:
    (item,) = read_items(b'{"uid": "annotation:7", "instance_id": "annotation:7", "messages": [], "reward": 1}', "task")
    assert (item.uid, item.instance) == ("annotation%3A7", "annotation:7")
    assert not item.uid.startswith(NOTE)


def test_settings_may_come_as_text() -> None:
    settings = CompatConfig().with_payload({"task_type": "math", "num_repeat_per_sample": "4", "group_timeout_seconds": "30", "min_valid_item_size_ratio": 0.9})
    assert (settings.task_type, settings.group_size, settings.group_timeout_seconds, settings.min_valid_item_size_ratio) == ("math", 4, 30.0, 0.9)
    assert CompatConfig().with_payload({"group_size": 3, "num_repeat_per_sample": 4}).group_size == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"group_size": "many"},
        {"group_size": 1.5},
        {"group_size": 0},
        {"group_size": "nan"},
        {"group_size": "inf"},
        {"max_buffer_size": 2.5},
        {"max_buffer_size": 0},
        {"min_valid_item_size_ratio": 2},
        {"group_timeout_seconds": "nan"},
        {"num_repeat_per_sample": 0},
        {"num_repeat_per_sample": "many"},
        {"num_repeat_per_sample": 1.5},
    ],
)
def test_settings_that_cannot_be_are_refused_by_the_name_that_they_came_under(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidError, match=f"^{next(iter(wrong))}:? must be "):
        CompatConfig().with_payload(wrong)
    with pytest.raises(ConfigError):
        CompatConfig(max_buffer_size=0)
