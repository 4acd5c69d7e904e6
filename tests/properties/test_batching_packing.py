"""Packing against a reader that walks the rows token by token: nothing is lost, repeated with loss, or moved."""

from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.batching.unpacking import check_spells, check_structure, sample

from penstock.batching import cost, micro_batches, pack
from penstock.batching.forest import forest, grouped
from penstock.trace.tree import prefix_tree
from penstock.types import Sample

Episode = list[tuple[int, list[int], str]]
"""Segments as (parent or -1, ids, kind)."""

few_ids = st.lists(st.integers(0, 2), min_size=1, max_size=4)


@st.composite
def episodes(draw: st.DrawFn) -> Episode:
    """A tree of segments that begins with a prompt. Ids are few, so that prompts of different members often begin alike."""
    episode: Episode = [(-1, draw(few_ids), "p")]
    for index in range(1, draw(st.integers(2, 7))):
        episode.append((draw(st.integers(max(0, index - 3), index - 1)), draw(few_ids), draw(st.sampled_from("ssp"))))
    return episode


def paths(uid: str, group: str, episode: Episode) -> list[Sample]:
    """One sample for each leaf with something to train on; a shared sampled segment has loss on the first path only."""
    parents = {parent for parent, _, _ in episode}
    trained: set[int] = set()
    out = []
    for leaf in range(len(episode)):
        path = [leaf]
        while episode[path[0]][0] >= 0:
            path.insert(0, episode[path[0]][0])
        sampled = {node for node in path if episode[node][2] == "s"}
        if leaf in parents or not sampled - trained:
            continue
        segments = [(node, episode[node][1], episode[node][2]) for node in path]
        out.append(sample(uid, *segments, group=group, no_loss=sorted(trained), arrays={"entropy": np.arange(sum(len(ids) for _, ids, _ in segments)) / 7}))
        trained |= sampled
    return out


@st.composite
def batches(draw: st.DrawFn) -> list[Sample]:
    groups = draw(st.lists(st.lists(episodes(), min_size=1, max_size=4), max_size=4))
    samples = [one for g, members in enumerate(groups) for m, episode in enumerate(members) for one in paths(f"r{g}.{m}", f"g/0/{g}", episode)]
    return draw(st.permutations(samples)) if draw(st.booleans()) else samples


def longest(samples: Sequence[Sample]) -> int:
    return max((len(one.ids) for one in samples), default=1)


@settings(max_examples=80, deadline=None)
@given(batches(), st.integers(0, 20))
def test_every_sample_is_read_back_exactly_and_trained_once(samples: list[Sample], room: int) -> None:
    tokens_per_row = longest(samples) + room
    example = pack(samples, tokens_per_row=tokens_per_row)
    assert example.input_ids.shape[1] <= tokens_per_row
    check_structure(example)
    check_spells(example, samples)


@settings(max_examples=80, deadline=None)
@given(batches())
def test_groups_of_one_prompt_need_no_search_and_have_the_nodes_that_a_search_finds(samples: list[Sample]) -> None:
    lengths_S = np.array([len(one.ids) for one in samples], dtype=np.int64)
    is_sampled = np.concatenate([np.zeros(0, np.bool_), *(one.loss_mask | (one.versions >= 0) for one in samples)])
    found = forest(samples, lengths_S, is_sampled, tokens_per_row=None)
    expected: list[tuple[int, int, int, int]] = []
    for indices in grouped(samples):
        first = len(expected)
        for parent, member, start, stop in prefix_tree([samples[index] for index in indices]).nodes:
            expected.append((-1 if parent < 0 else parent + first, indices[member], start, stop))
    columns = (found.parent_K, found.sample_K, found.start_K, found.stop_K)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == expected


@settings(max_examples=30, deadline=None)
@given(batches())
def test_whole_trees_cost_what_they_are_said_to_cost(samples: list[Sample]) -> None:
    example = pack(samples, tokens_per_row=None)
    assert int((example.segment_ids > 0).sum()) == cost(samples) <= sum(len(one.ids) for one in samples)
    check_structure(example)
    check_spells(example, samples)


@settings(max_examples=30, deadline=None)
@given(batches(), st.integers(1, 60))
def test_micro_batches_are_the_rows_of_the_whole(samples: list[Sample], tokens: int) -> None:
    example = pack(samples, tokens_per_row=longest(samples) + 3)
    parts = list(micro_batches(example, tokens))
    for part in parts:
        check_structure(part)
        num_rows, width = part.input_ids.shape
        assert num_rows == 1 or num_rows * width <= tokens
    rows = [row[part.segment_ids[index] > 0].tolist() for part in parts for index, row in enumerate(part.input_ids)]
    assert rows == [row[example.segment_ids[index] > 0].tolist() for index, row in enumerate(example.input_ids)]


@settings(max_examples=30, deadline=None)
@given(batches())
def test_packing_again_gives_the_same_arrays(samples: list[Sample]) -> None:
    one, other = (pack(samples, tokens_per_row=longest(samples) + 5) for _ in range(2))
    assert np.array_equal(one.input_ids, other.input_ids)
    assert np.array_equal(one.sample_ids, other.sample_ids)
    assert np.array_equal(one.parents, other.parents)
