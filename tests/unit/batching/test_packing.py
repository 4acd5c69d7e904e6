from dataclasses import replace

import numpy as np
import pytest
from tests.unit.batching.unpacking import check_spells, check_structure, sample

from penstock.batching import cost, fill_ratio, micro_batches, pack
from penstock.types import RlExample, Sample


def two_members() -> list[Sample]:
    """Prompt 1 2 3 4 and 1 2 5, replies 6 7 and 8."""
    return [sample("u", (0, [1, 2, 3, 4], "p"), (1, [6, 7], "s")), sample("w", (0, [1, 2, 5], "p"), (1, [8], "s"))]


def test_two_members_worked_out_by_hand() -> None:
    example = pack(two_members(), tokens_per_row=16)
    #                                    1  2 | 3  4  6  7 | 5  8
    assert example.input_ids.tolist() == [[1, 2, 3, 4, 6, 7, 5, 8]]
    assert example.position_ids.tolist() == [[0, 1, 2, 3, 4, 5, 2, 3]]
    assert example.predecessors.tolist() == [[-1, 0, 1, 2, 3, 4, 1, 6]]
    assert example.segment_ids[0, [0, 1]].tolist() == [1, 1]
    assert example.loss_mask.tolist() == [[False, False, False, False, True, True, False, True]]
    assert example.sample_ids.tolist() == [[-1, -1, -1, -1, 0, 0, -1, 1]]
    assert example.parents[0, example.segment_ids[0, 7]] in (1, example.segment_ids[0, 6])
    assert example.num_samples == 2
    assert example.input_ids.dtype == example.parents.dtype == example.predecessors.dtype == np.int32
    assert example.advantages.dtype == example.policy_logprobs.dtype == np.float32
    assert cost(two_members()) == 8
    check_structure(example)
    check_spells(example, two_members())


def test_paths_of_one_rollout_share_sampled_segments_with_loss_once() -> None:
    samples = [
        sample("u", (0, [1], "p"), (1, [2, 3], "s"), (2, [4], "p"), (3, [5], "s")),
        sample("u", (0, [1], "p"), (1, [2, 3], "s"), (4, [6], "p"), (5, [7], "s"), no_loss=[1]),
    ]
    example = pack(samples, tokens_per_row=100)
    assert example.input_ids.size == cost(samples) == 7
    check_structure(example)
    check_spells(example, samples)


def test_a_tree_bigger_than_a_row_repeats_its_prefix_and_counts_loss_once() -> None:
    samples = [
        sample("u", (0, [1, 1], "p"), (1, [2, 3], "s"), (2, [4], "p"), (3, [5, 5], "s")),
        sample("u", (0, [1, 1], "p"), (1, [2, 3], "s"), (4, [6], "p"), (5, [7, 7], "s"), no_loss=[1]),
        sample("w", (0, [1, 1], "p"), (1, [9, 9, 9], "s")),
    ]
    example = pack(samples, tokens_per_row=8)
    assert cost(samples) == 13
    assert example.input_ids.shape[1] <= 8
    assert int((example.segment_ids > 0).sum()) > 13
    assert int(example.loss_mask.sum()) == sum(int(one.loss_mask.sum()) for one in samples)
    check_structure(example)
    check_spells(example, samples)
    assert pack(samples, tokens_per_row=None).input_ids.shape == (1, 13)


def test_a_path_longer_than_a_row_is_refused_by_name() -> None:
    samples = [sample("fine", (0, [1], "p"), (1, [2], "s")), sample("long", (0, [1], "p"), (1, [2] * 9, "s"))]
    with pytest.raises(ValueError, match=r"rollout long of group g/0/0 has a path of 10 tokens; a row holds 9"):
        pack(samples, tokens_per_row=9)
    check_spells(pack(samples, tokens_per_row=10), samples)
    check_spells(pack(samples, tokens_per_row=None), samples)


def test_rows_are_filled_best_fit_first() -> None:
    # Trees of 7, 5, 3 and 2 tokens: 7 + 3 and 5 + 2 in rows of 10.
    samples = [sample(f"u{size}", (0, [size], "p"), (1, [0] * (size - 1), "s"), group=f"g/0/{size}") for size in (3, 7, 5, 2)]
    example = pack(samples, tokens_per_row=10)
    assert [row[row > 0].tolist() for row in example.input_ids] == [[7, 3], [5, 2]]
    assert fill_ratio(example) == 17 / 20


def test_the_order_of_groups_does_not_change_the_rows() -> None:
    samples = [
        sample(f"{group}{member}", (0, [group], "p"), (1, [member] * (1 + group % 4), "s"), group=f"g/0/{group}") for group in range(9) for member in range(3)
    ]
    shuffled = [samples[index] for index in np.random.default_rng(3).permutation(9).repeat(3) * 3 + np.tile(range(3), 9)]
    one, other = pack(samples, tokens_per_row=20), pack(shuffled, tokens_per_row=20)
    for name in ("input_ids", "loss_mask", "segment_ids", "position_ids", "predecessors", "advantages", "policy_logprobs", "versions", "mixed_kv", "parents"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    assert not np.array_equal(one.sample_ids, other.sample_ids)
    check_spells(other, shuffled)


def test_members_of_a_group_need_not_be_neighbours() -> None:
    a = [sample(f"a{member}", (0, [1, 2], "p"), (1, [member], "s"), group="a") for member in range(2)]
    b = [sample(f"b{member}", (0, [1, 2], "p"), (1, [member], "s"), group="b") for member in range(2)]
    mixed = [a[0], b[0], a[1], b[1]]
    assert cost(mixed) == 8
    check_spells(pack(mixed, tokens_per_row=100), mixed)


def test_named_arrays_go_with_their_tokens_and_the_reference_has_its_own_place() -> None:
    arrays = {"reference_logprobs": np.array([0, -1, -2], dtype=np.float32), "experts": np.arange(6, dtype=np.int16).reshape(3, 2)}
    samples = [
        sample("u", (0, [1], "p"), (1, [2, 3], "s"), arrays=arrays),
        sample(
            "longer",
            (0, [1, 1], "p"),
            (1, [2, 3], "s"),
            arrays={"reference_logprobs": np.array([0, 0, -3, -4], dtype=np.float32), "experts": np.arange(8, dtype=np.int16).reshape(4, 2)},
            group="g/0/1",
        ),
    ]
    example = pack(samples, tokens_per_row=4)
    assert example.reference_logprobs is not None
    assert example.reference_logprobs.tolist() == [[0, 0, -3, -4], [0, -1, -2, 0]]
    assert example.arrays["experts"].tolist() == [[[0, 1], [2, 3], [4, 5], [6, 7]], [[0, 1], [2, 3], [4, 5], [0, 0]]]
    assert example.arrays["experts"].dtype == np.int16
    assert set(example.arrays) == {"experts"}


def test_an_array_that_only_some_samples_have_is_refused() -> None:
    samples = [sample("u", (1, [2, 3], "s"), arrays={"values": np.zeros(2)}), sample("w", (1, [2, 3], "s"))]
    with pytest.raises(ValueError, match=r"sample 1 \(w\) has 2 ids but 0 entries of 'values'"):
        pack(samples, tokens_per_row=8)


def test_lengths_that_differ_are_refused_even_if_they_add_up() -> None:
    one, other = two_members()
    samples = [replace(one, logprobs=one.logprobs[:-1]), replace(other, logprobs=np.zeros(5, dtype=np.float32))]
    with pytest.raises(ValueError, match=r"sample 0 \(u\) has 6 ids but 5 entries of 'logprobs'"):
        pack(samples, tokens_per_row=8)


def test_media_is_refused() -> None:
    with pytest.raises(ValueError, match="media abc"):
        pack([replace(sample("u", (1, [2], "s")), media=((0, "abc"),))], tokens_per_row=8)


@pytest.mark.parametrize("tokens_per_row", [0, -5])
def test_a_row_without_room_is_refused(tokens_per_row: int) -> None:
    with pytest.raises(ValueError, match=f"tokens_per_row is {tokens_per_row}"):
        pack([], tokens_per_row=tokens_per_row)


def test_no_samples_make_no_rows() -> None:
    example = pack([], tokens_per_row=8)
    assert example.input_ids.shape == (0, 0)
    assert example.num_samples == 0
    assert cost([]) == 0
    assert list(micro_batches(example, 10)) == []


def five_rows() -> RlExample:
    return pack([sample(f"u{size}", (0, [size], "p"), (1, [1] * (size - 1), "s"), group=f"g/0/{size}") for size in (9, 8, 7, 6, 5)], tokens_per_row=9)


def test_micro_batches_split_rows_evenly_within_the_tokens() -> None:
    example = five_rows()
    parts = list(micro_batches(example, 30))  # three rows of 9 fit: two parts, of two and three rows
    assert [part.input_ids.shape for part in parts] == [(2, 9), (3, 7)]
    assert all(part.num_samples == 5 for part in parts)
    assert [row[row > 0].tolist() for part in parts for row in np.where(part.loss_mask, 0, part.input_ids)] == [[9], [8], [7], [6], [5]]
    for part in parts:
        check_structure(part)


def test_a_micro_batch_has_at_least_one_row() -> None:
    assert len(list(micro_batches(five_rows(), 1))) == 5
    with pytest.raises(ValueError, match="tokens is 0"):
        list(micro_batches(five_rows(), 0))


def test_micro_batches_cut_every_array() -> None:
    arrays = {"reference_logprobs": np.zeros(3, dtype=np.float32), "values": np.ones(3, dtype=np.float32)}
    example = pack([sample(f"u{index}", (1, [1, 2, 3], "s"), arrays=arrays, group=f"g/0/{index}") for index in range(4)], tokens_per_row=3)
    (first, second) = micro_batches(example, 6)
    assert first.arrays["values"].shape == (2, 3)
    assert second.reference_logprobs is not None
    assert second.reference_logprobs.shape == (2, 3)
    assert second.parents.shape == (2, 2)


def test_a_sample_without_tokens_takes_no_place() -> None:
    samples = [sample("empty"), sample("u", (1, [5], "s"))]
    example = pack(samples, tokens_per_row=4)
    assert example.input_ids.tolist() == [[5]]
    assert example.sample_ids.tolist() == [[1]]
    check_spells(example, samples)
