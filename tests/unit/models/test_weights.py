from __future__ import annotations

from pathlib import Path

import pytest
import torch
import xxhash
from safetensors.torch import load_file

from penstock.errors import WeightsError
from penstock.models import keep_weights, load_tensors, model_tensors, read_weights, weights_digest, weights_path, write_weights

SOME = {"b": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "a": torch.tensor([5], dtype=torch.int64), "c": torch.tensor(0.5, dtype=torch.bfloat16)}


def test_the_digest_is_over_sorted_names_dtypes_shapes_and_bytes() -> None:
    spelled = b"a\0int64\x001\0" + (5).to_bytes(8, "little")
    spelled += b"b\0float32\x002x2\0" + bytes.fromhex("0000803f 00000040 00004040 00008040".replace(" ", ""))
    spelled += b"c\0bfloat16\0\0" + bytes.fromhex("003f")
    assert weights_digest(SOME) == xxhash.xxh3_128(spelled).hexdigest()


def test_the_digest_sees_every_change() -> None:
    base = weights_digest({"a": torch.zeros(4)})
    assert weights_digest({"b": torch.zeros(4)}) != base
    assert weights_digest({"a": torch.zeros(2, 2)}) != base
    assert weights_digest({"a": torch.zeros(4, dtype=torch.int32)}) != base
    assert weights_digest({"a": torch.tensor([0.0, 0.0, 0.0, -0.0])}) != base


def test_the_digest_is_of_values_not_of_memory_layout() -> None:
    matrix = torch.arange(6.0).view(2, 3)
    assert weights_digest({"a": matrix.t()}) == weights_digest({"a": matrix.t().contiguous()})


def test_a_tied_tensor_counts_once_and_two_equal_ones_count_twice() -> None:
    embedding, other = torch.ones(3), torch.zeros(2)
    tied = weights_digest({"lm_head.weight": embedding, "model.bias": other, "model.embed_tokens.weight": embedding})
    assert tied == weights_digest({"model.bias": other, "model.embed_tokens.weight": embedding})
    assert tied != weights_digest({"lm_head.weight": embedding.clone(), "model.bias": other, "model.embed_tokens.weight": embedding})


def test_weights_come_back_from_their_file_bit_for_bit(tmp_path: Path) -> None:
    write_weights(tmp_path / "w.safetensors", SOME)
    back = read_weights(tmp_path / "w.safetensors")
    assert weights_digest(back) == weights_digest(SOME)
    assert [path.name for path in tmp_path.iterdir()] == ["w.safetensors"]


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    write_weights(path, SOME)
    before = path.read_bytes()
    line = torch.zeros(4)
    with pytest.raises(RuntimeError):
        write_weights(path, {"overlapping": line[:3], "tensors": line[1:]})
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["w.safetensors"]


@pytest.mark.parametrize("damage", [b"", b"\x80\x04\x95not safetensors", None])
def test_what_is_no_whole_safetensors_file_is_refused(tmp_path: Path, damage: bytes | None) -> None:
    path = tmp_path / "w.safetensors"
    write_weights(path, SOME)
    path.write_bytes(path.read_bytes()[:-3] if damage is None else damage)
    with pytest.raises(WeightsError, match=r"w\.safetensors"):
        read_weights(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="there is no weights file gone"):
        read_weights(tmp_path / "gone.safetensors")


@pytest.mark.parametrize("digest", ["", "../../etc/passwd", "A" * 32, "0" * 31, "0" * 32 + "\n"])
def test_only_a_digest_becomes_a_path(digest: str) -> None:
    with pytest.raises(WeightsError):
        weights_path(Path("weights"), digest)


def test_kept_weights_lie_under_their_digest_and_are_written_once(tmp_path: Path) -> None:
    digest = keep_weights(tmp_path / "weights", SOME)
    path = weights_path(tmp_path / "weights", digest)
    first = path.stat().st_ino
    assert keep_weights(tmp_path / "weights", SOME) == digest
    assert path.stat().st_ino == first
    assert weights_digest(load_file(path)) == digest


def test_tensors_of_another_model_are_refused_before_anything_changes() -> None:
    model = torch.nn.Linear(2, 2)
    before = weights_digest(model_tensors(model))
    new = {"weight": torch.ones(2, 2), "bias": torch.ones(2)}
    for wrong in ({"weight": new["weight"]}, {**new, "more": torch.ones(1)}, {**new, "bias": torch.ones(3)}, {**new, "bias": torch.ones(2).double()}):
        with pytest.raises(WeightsError):
            load_tensors(model, wrong)
    assert weights_digest(model_tensors(model)) == before
    load_tensors(model, new)
    assert weights_digest(model_tensors(model)) == weights_digest(new)
