from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.batching import pack
from penstock.errors import InvariantError
from penstock.learner.lines import Line, line_of
from penstock.types import RlExample, Sample


def attended(line: Line, place: int) -> list[int]:
    """Places of the line that a place attends to, read off the layout one node at a time."""
    first_query = first_key = 0
    for shape in line.layout.shapes:
        for _ in range(shape.count):
            queries = line.layout.query_index_T[first_query : first_query + shape.length].tolist()
            keys = line.layout.key_index_K[first_key : first_key + shape.prefix + shape.length].tolist()
            if place in queries:
                return keys[: shape.prefix + queries.index(place) + 1]
            first_query, first_key = first_query + shape.length, first_key + shape.prefix + shape.length
    raise AssertionError(f"{place} is in no node")


def path_before(example: RlExample, row: int, column: int) -> list[int]:
    """Ids from the root to the token before this one, by walking back."""
    ids: list[int] = []
    while (column := int(example.predecessors[row, column])) >= 0:
        ids.insert(0, int(example.input_ids[row, column]))
    return ids


def tiny_forest(lengths: Sequence[int], parents: Sequence[int], ids: Sequence[int]) -> RlExample:
    """One row with nodes as given; parents count nodes from 1, 0 is a root."""
    num_tokens = sum(lengths)
    segment_ids = np.repeat(np.arange(1, len(lengths) + 1), lengths)
    predecessors = np.arange(-1, num_tokens - 1)
    positions = np.zeros(num_tokens, np.int32)
    starts = np.cumsum([0, *lengths])
    for node, parent in enumerate(parents):
        predecessors[starts[node]] = starts[parent] - 1 if parent > 0 else -1
        for place in range(starts[node], starts[node + 1]):
            positions[place] = positions[predecessors[place]] + 1 if predecessors[place] >= 0 else 0
    zeros = np.zeros((1, num_tokens), np.float32)
    return RlExample(
        input_ids=np.array([ids], np.int32),
        loss_mask=zeros > 0,
        segment_ids=segment_ids[None].astype(np.int32),
        position_ids=positions[None],
        predecessors=predecessors[None].astype(np.int32),
        advantages=zeros,
        policy_logprobs=zeros,
        versions=zeros.astype(np.int32),
        mixed_kv=zeros > 0,
        sample_ids=zeros.astype(np.int32),
        parents=np.array([[0, *parents]], np.int32),
        num_samples=1,
    )


@st.composite
def forests(draw: st.DrawFn) -> tuple[RlExample, np.ndarray]:
    lengths = draw(st.lists(st.integers(1, 4), min_size=1, max_size=8))
    parents = [draw(st.integers(0, node)) for node in range(len(lengths))]
    example = tiny_forest(lengths, parents, range(sum(lengths)))
    may_be_wanted = np.flatnonzero(example.predecessors[0] >= 0).tolist()
    wanted = np.zeros((1, sum(lengths)), np.bool_)
    if may_be_wanted:
        wanted[0, draw(st.lists(st.sampled_from(may_be_wanted), min_size=1))] = True
    return example, wanted


@given(forests())
@settings(max_examples=200, deadline=None)
def test_each_wanted_token_is_predicted_from_exactly_its_own_path(forest: tuple[RlExample, np.ndarray]) -> None:
    example, wanted = forest
    if not wanted.any():
        return
    line = line_of(example, wanted)
    assert line.places_L.tolist() == np.flatnonzero(wanted).tolist()
    needed = set()
    for number, place in enumerate(line.places_L.tolist()):
        keys = attended(line, int(line.predictors_L[number]))
        assert line.ids_T[keys].tolist() == path_before(example, 0, place)
        assert line.positions_T[keys].tolist() == list(range(len(keys)))
        assert line.targets_L[number] == example.input_ids[0, place]
        needed |= set(keys)
    assert needed == set(range(line.layout.num_tokens))


def test_the_last_token_of_a_reply_and_what_nothing_hangs_on_are_left_out() -> None:
    example = tiny_forest([3, 2, 4], [0, 1, 1], [10, 11, 12, 20, 21, 30, 31, 32, 33])
    wanted = np.zeros((1, 9), np.bool_)
    wanted[0, [3, 4]] = True
    line = line_of(example, wanted)
    assert line.ids_T.tolist() == [10, 11, 12, 20]
    assert line.predictors_L.tolist() == [2, 3]
    assert line.targets_L.tolist() == [20, 21]


def test_a_packed_batch_and_one_with_a_row_per_sample_score_the_same_tokens(
    samples: list[Sample], one_sample_a_row: Callable[[Sequence[Sample]], RlExample]
) -> None:
    def scored(example: RlExample) -> list[tuple[list[int], int]]:
        line = line_of(example, example.loss_mask)
        width = example.input_ids.shape[1]
        return sorted((path_before(example, *divmod(place, width)), int(target)) for place, target in zip(line.places_L.tolist(), line.targets_L, strict=True))

    assert scored(pack(samples, tokens_per_row=64)) == scored(one_sample_a_row(samples))


def test_a_root_token_cannot_carry_loss(samples: list[Sample]) -> None:
    example = pack(samples, tokens_per_row=None)
    wanted = example.loss_mask.copy()
    wanted[0, 0] = True
    with pytest.raises(InvariantError, match="row 0, column 0"):
        line_of(example, wanted)


def test_segments_in_pieces_and_children_before_parents_are_refused() -> None:
    example = tiny_forest([2, 2], [0, 1], [1, 2, 3, 4])
    wanted = np.array([[False, False, False, True]])
    with pytest.raises(InvariantError, match="one piece"):
        line_of(replace(example, segment_ids=np.array([[1, 2, 1, 2]], np.int32)), wanted)
    with pytest.raises(InvariantError, match="before its parent"):
        line_of(replace(example, parents=np.array([[0, 2, 0]], np.int32)), wanted)
