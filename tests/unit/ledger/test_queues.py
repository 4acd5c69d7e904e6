"""The queue of ready groups equals a sorted list."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.ledger.queues import ReadyQueue

KEYS = st.tuples(st.integers(-1, 3), st.integers(0, 20), st.just("g"))


@given(st.lists(st.tuples(st.sampled_from(["add", "front", "back", "any"]), KEYS, st.integers(0, 50))))
def test_a_queue_is_a_sorted_list_whatever_is_put_in_and_taken_out(steps: list[tuple[str, tuple[int, int, str], int]]) -> None:
    queue, expected = ReadyQueue(), []
    for verb, key, place in steps:
        if verb == "add" and key not in expected:
            queue.add(key)
            expected = sorted([*expected, key])
        elif verb != "add" and expected:
            taken = expected.pop({"front": 0, "back": -1, "any": place % len(expected)}[verb])
            queue.remove(taken)
        assert list(queue) == expected
        assert list(reversed(queue)) == expected[::-1]
        assert len(queue) == len(expected)
        assert queue[1:] == expected[1:]
        assert queue[:2] == expected[:2]
        for version in range(-1, 4):
            assert queue.first_from(version) == sum(known[0] < version for known in expected)
