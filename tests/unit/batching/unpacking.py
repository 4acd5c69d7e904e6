"""A slow, obvious reader of packed rows, and small makers of samples. Used by the tests of packing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from penstock.types import RlExample, Sample


def sample(
    uid: str,
    *segments: tuple[int, Sequence[int], str],
    group: str = "g/0/0",
    arrays: Mapping[str, npt.NDArray[np.generic]] | None = None,
    no_loss: Sequence[int] = (),
) -> Sample:
    """A path of segments (number, ids, kind), where kind is `p` for given tokens, `s` for sampled ones. Every sampled token gets its own numbers."""
    ids = [token for _, tokens, _ in segments for token in tokens]
    sampled = [kind == "s" for _, tokens, kind in segments for _ in tokens]
    loss = [kind == "s" and number not in no_loss for number, tokens, kind in segments for _ in tokens]
    places = [(number, index) for number, tokens, _ in segments for index in range(len(tokens))]
    seed = sum(map(ord, uid))
    return Sample(
        run="run",
        environment="env",
        group_id=group,
        rollout_uid=uid,
        path=tuple(number for number, _, _ in segments),
        lengths=tuple(len(tokens) for _, tokens, _ in segments),
        ids=np.array(ids, dtype=np.int32),
        loss_mask=np.array(loss, dtype=np.bool_),
        logprobs=np.array([-(1 + n + 10 * k + 100 * seed) / 1024 if s else 0 for s, (n, k) in zip(sampled, places, strict=True)], dtype=np.float32),
        versions=np.array([(n + k) % 3 if s else -1 for s, (n, k) in zip(sampled, places, strict=True)], dtype=np.int32),
        advantages=np.array([seed + n / 8 + k / 64 if s else 0 for s, (n, k) in zip(loss, places, strict=True)], dtype=np.float32),
        mixed_kv=np.array([s and k % 2 == 1 for s, (_, k) in zip(sampled, places, strict=True)], dtype=np.bool_),
        arrays=arrays or {},
    )


def path_to(example: RlExample, row: int, column: int) -> list[int]:
    """Columns of the path that ends at a token, from the root, found by walking back one token at a time."""
    path = []
    while column >= 0:
        path.append(column)
        column = int(example.predecessors[row, column])
    return path[::-1]


def check_structure(example: RlExample) -> None:
    """Segments are runs numbered from 1 in order, padding stands behind them, and predecessors, parents and positions tell one story."""
    num_rows, width = example.segment_ids.shape
    for row in range(num_rows):
        numbers = example.segment_ids[row].tolist()
        num_tokens = sum(number > 0 for number in numbers)
        assert all(number > 0 for number in numbers[:num_tokens])
        assert sorted(set(numbers[:num_tokens])) == list(range(1, max(numbers, default=0) + 1))
        for column in range(width):
            if column >= num_tokens:
                assert example.predecessors[row, column] == example.versions[row, column] == example.sample_ids[row, column] == -1
                assert not example.loss_mask[row, column]
                assert not example.mixed_kv[row, column]
                assert example.input_ids[row, column] == example.position_ids[row, column] == 0
                continue
            before = int(example.predecessors[row, column])
            first_of_segment = column == 0 or numbers[column - 1] != numbers[column]
            parent = int(example.parents[row, numbers[column]])
            if first_of_segment:
                assert (numbers[before] if before >= 0 else 0) == parent
                assert before < 0 or before + 1 == num_tokens or numbers[before + 1] != numbers[before]
                assert parent < numbers[column]
            else:
                assert numbers[column] == numbers[column - 1]
                assert before == column - 1
            assert example.position_ids[row, column] == (example.position_ids[row, before] + 1 if before >= 0 else 0)
        assert not example.parents[row, max(numbers, default=0) + 1 :].any()


def check_spells(example: RlExample, samples: Sequence[Sample]) -> None:
    """Every sample can be read back token by token, and each of its tokens with loss stands in one place with loss, with its own numbers."""
    assert example.num_samples == len(samples)
    spelled = spelled_paths(example)
    places = {}
    for row, column in np.argwhere(example.loss_mask).tolist():
        key = (int(example.sample_ids[row, column]), int(example.position_ids[row, column]))
        assert key not in places, f"token {key} carries loss twice"
        places[key] = (row, column)
    assert ((example.sample_ids >= 0) == example.loss_mask).all()
    assert set(places) == {(index, position) for index, sample in enumerate(samples) for position in np.flatnonzero(sample.loss_mask).tolist()}
    for index, sample in enumerate(samples):
        # Losses that look at whole samples need all of their tokens at once.
        assert len({row for (owner, _), (row, _) in places.items() if owner == index}) <= 1, f"sample {index} has loss in several rows"
        assert len(sample.ids) == 0 or tuple(sample.ids.tolist()) in spelled
        for position in np.flatnonzero(sample.loss_mask).tolist():
            row, column = places[index, position]
            path = path_to(example, row, column)
            assert example.input_ids[row, path].tolist() == sample.ids[: position + 1].tolist()
            assert example.policy_logprobs[row, path].tolist() == sample.logprobs[: position + 1].tolist()
            assert example.versions[row, path].tolist() == sample.versions[: position + 1].tolist()
            assert example.mixed_kv[row, path].tolist() == sample.mixed_kv[: position + 1].tolist()
            assert example.advantages[row, column] == sample.advantages[position]
            for name, array in sample.arrays.items():
                assert np.array_equal(example.arrays[name][row, column], array[position])


def spelled_paths(example: RlExample) -> set[tuple[int, ...]]:
    """Ids of every path from a root to a token."""
    rows, columns = np.nonzero(example.segment_ids)
    return {tuple(example.input_ids[row, path_to(example, row, column)].tolist()) for row, column in zip(rows.tolist(), columns.tolist(), strict=True)}
