from collections.abc import Callable

import numpy as np
import pytest

from penstock.advantages import gigpo, hash_concatenated_content, hash_last_messages, hash_structured
from penstock.advantages._observations import anchor_key
from penstock.advantages.anchors import first_fit
from penstock.types import Message


def same(first: object, second: object) -> bool:
    """Whether two steps with these anchors are compared with each other."""
    return bool(gigpo([1.0, 0.0], [0, 1], [0, 0], [first, second]).step.any())


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("hall", "hall"),
        ({"room": "hall", "has": ["mug", 1]}, {"has": ["mug", 1], "room": "hall"}),
        ((3, 4), [3, 4]),
        (np.array([1, 2]), [1, 2]),
        (np.float64(0.5), 0.5),
        (b"\x00\xff", b"\x00\xff"),
        ("", ""),
        ("\ud800", "\ud800"),
        (float("nan"), float("nan")),
        (Message(role="user", content="x"), Message(role="user", content="x")),
        (2**80, 2**80),
    ],
)
def test_equal_observations_are_one_state(first: object, second: object) -> None:
    assert same(first, second)


def test_one_and_true_and_one_point_zero_are_different_states() -> None:
    different = [1, 1.0, True, "1", "true", [1], {"1": 1}, b"1", 0, False, "", [], {}]
    assert len({anchor_key(observation) for observation in different}) == len(different)
    assert not any(same(first, second) for place, first in enumerate(different) for second in different[:place])
    assert not same({"a": 1}, {"a": True})


def test_keys_of_a_dict_are_told_apart_like_observations() -> None:
    different = [{1: "x"}, {"1": "x"}, {1.0: "x"}, {True: "x"}, {"true": "x"}, {None: "x"}, {"null": "x"}, {"\x001": "x"}, {"\x00\x001": "x"}, {(): "x"}]
    assert len({anchor_key(observation) for observation in different[:-1]}) == len(different) - 1
    assert len({hash_structured()(observation) for observation in different[:-1]}) == len(different) - 1
    assert same({1: "x", "1": "y"}, {"1": "y", 1: "x"})
    assert same({np.int64(1): "x"}, {1: "x"})
    with pytest.raises(ValueError, match=r"anchor\[1\] is \{\(\): 'x'\}, which cannot be compared: a dict has the key \(\), and tuple as a key"):
        same("hall", different[-1])


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: {"at": x}, lambda x: {x: "here"}, lambda x: [x, 1], lambda x: np.array([x]), np.float64, np.float32])
def test_zero_has_no_sign(wrap: Callable[[float], object]) -> None:
    assert same(wrap(0.0), wrap(-0.0))
    assert not same(wrap(0.0), wrap(0.5))


def test_rows_of_an_array_are_observations() -> None:
    rewards, trajectory = [1.0, 0.0, 0.0], [0, 1, 2]
    assert gigpo(rewards, trajectory, [0] * 3, np.array([[1, 2], [3, 4], [1, 2]])).step.tolist() == [0.5, 0.0, -0.5]
    assert gigpo(rewards, trajectory, [0] * 3, np.array([7, 8, 7])).step.tolist() == [0.5, 0.0, -0.5]
    assert gigpo(rewards, trajectory, [0] * 3, iter(["a", "b", "a"])).step.tolist() == [0.5, 0.0, -0.5]


def test_similar_texts_are_one_state_from_the_threshold_on() -> None:
    # One letter of ten replaced: one deletion and one insertion of 20, so 0.9.
    rewards, trajectory, anchor = [1.0, 0.0, 0.0], [0, 1, 2], ["abcdefghij", "abcdefghiX", "something else"]
    assert gigpo(rewards, trajectory, [0] * 3, anchor, similarity=0.9).step.tolist() == [0.5, -0.5, 0.0]
    assert not gigpo(rewards, trajectory, [0] * 3, anchor, similarity=0.91).step.any()


def test_a_text_joins_the_first_cluster_whose_first_member_it_resembles() -> None:
    # b resembles a, c resembles b but not a: c opens its own cluster; d resembles both a and c and joins a.
    a, b, c, d = "aaaaaaaaaa", "aaaaaaaabb", "aaaaaabbbb", "aaaaaaaabb" + "b"
    assert first_fit([a, b, c, d], 0.75).tolist() == [0, 0, 1, 0]


def test_similarity_does_not_reach_into_another_group_and_knows_no_anchor() -> None:
    rewards, anchor = [1.0, 0.0, 5.0, 7.0], ["state one", "state one.", "state one", None]
    assert gigpo(rewards, range(4), ["x", "x", "y", "y"], anchor, similarity=0.9).step.tolist() == [0.5, -0.5, 0.0, 0.0]


def test_similarity_reads_what_is_not_text_as_json() -> None:
    anchor = [{"room": "a long hall", "turn": 1}, {"room": "a long hall", "turn": 2}, ["nothing like it"]]
    assert gigpo([1.0, 0.0, 0.0], range(3), [0] * 3, anchor, similarity=0.9).step.tolist() == [0.5, -0.5, 0.0]
    assert gigpo([1.0, 0.0, 0.0], range(3), [0] * 3, [b"\x01", 7, b"\x01"], similarity=1.0).step.tolist() == [0.5, 0.0, -0.5]


TALK = [Message(role="user", content="a hall"), Message(role="assistant", content="north"), Message(role="user", content="a shed")]


def test_all_content_counts_and_roles_do_not() -> None:
    as_dicts = [{"role": "tool", "content": message.content} for message in TALK]
    assert hash_concatenated_content(TALK) == hash_concatenated_content(as_dicts) == hash_concatenated_content({"messages": as_dicts})
    assert hash_concatenated_content(TALK) != hash_concatenated_content(TALK[1:])
    assert hash_concatenated_content(["ab", "c"]) != hash_concatenated_content(["a", "bc"])
    assert hash_concatenated_content("text") == hash_concatenated_content(["text"])


def test_the_last_messages_count() -> None:
    assert hash_last_messages(1)(TALK) == hash_last_messages(1)(["another road", "a shed"])
    assert hash_last_messages(2)(TALK) != hash_last_messages(2)(["another road", "a shed"])
    assert hash_last_messages(9)(TALK) == hash_concatenated_content(TALK)
    with pytest.raises(ValueError, match="num_messages is 0"):
        hash_last_messages(0)


def test_chosen_keys_of_a_structure_count() -> None:
    assert hash_structured()({"a": 1, "b": [2]}) == hash_structured()({"b": [2], "a": 1})
    assert hash_structured()({"a": 1}) != hash_structured()({"a": 1.0})
    assert hash_structured(["a"])({"a": 1, "turn": 3}) == hash_structured(["a"])({"a": 1, "turn": 4})
    with pytest.raises(ValueError, match="keys is 'room'; it must be a list of keys"):
        hash_structured("room")
    with pytest.raises(ValueError, match=r"the observation is 'hall'; to take a from it, it must be a dict"):
        hash_structured(["a"])("hall")


@pytest.mark.parametrize("function", [hash_concatenated_content, hash_last_messages(2), hash_structured(), hash_structured(["a"])])
def test_no_observation_has_no_state(function: object) -> None:
    assert function(None) is None  # type: ignore[operator]


def test_content_that_is_not_text_counts_as_it_is() -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "look"}]}]
    other = [{"role": "user", "content": [{"type": "text", "text": "took"}]}]
    assert hash_concatenated_content(parts) != hash_concatenated_content(other)


def test_no_words_are_not_the_word_null_and_tool_calls_count() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    other = {**call, "function": {"name": "took", "arguments": "{}"}}
    talks: list[list[object]] = [
        [{"role": "user", "content": None}],
        [{"role": "user", "content": "null"}],
        [{"role": "user", "content": ["null"]}],
        [{"role": "assistant", "content": None, "tool_calls": [call]}],
        [{"role": "assistant", "content": None, "tool_calls": [other]}],
        [{"role": "assistant", "content": "", "tool_calls": [call]}],
    ]
    assert len({hash_concatenated_content(talk) for talk in talks}) == len(talks)
    assert hash_concatenated_content([Message(role="assistant", tool_calls=(call,))]) == hash_concatenated_content(talks[-1])
