from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from penstock.errors import CorruptError, FencedError, SchemaError, UnknownError, WeightsError
from penstock.learner import LearnerConfig, LossConfig
from penstock.learner.checkpoints import Checkpoints
from penstock.learner.optim import Moments
from penstock.learner.step import Learner, LearnerState
from penstock.models import weights_digest

FILES = ("weights.safetensors", "moments.safetensors", "state.json", "manifest.json")


def some_state(value: float = 1.0) -> LearnerState:
    tensors = [{"a": torch.full((2, 3), value + number), "b": torch.tensor([value - number])} for number in range(3)]
    return LearnerState(weights=tensors[0], moments=Moments(first=tensors[1], second=tensors[2]), num_applied=4, version=7)


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path / "checkpoints", run="run", term=2)


def place_of(tmp_path: Path, update: int) -> Path:
    return tmp_path / "checkpoints" / f"update_{update}"


def test_what_was_saved_is_read_bit_for_bit(checkpoints: Checkpoints) -> None:
    state = some_state()
    digest = checkpoints.save(5, state, {"seed": 3})
    back = checkpoints.read(5, digest=digest)
    assert (back.update, back.digest, back.facts) == (5, digest, {"seed": 3})
    assert (back.state.num_applied, back.state.version) == (4, 7)
    for ours, theirs in (
        (state.weights, back.state.weights),
        (state.moments.first, back.state.moments.first),
        (state.moments.second, back.state.moments.second),
    ):
        assert weights_digest(ours) == weights_digest(theirs)


def test_a_learner_continues_from_a_checkpoint(checkpoints: Checkpoints, model: PreTrainedModel) -> None:
    learner = Learner(model, LearnerConfig(), LossConfig(), max_lag=1, version=3)
    checkpoints.save(0, learner.state())
    before = weights_digest(learner.weights)
    learner.restore(checkpoints.read(0).state)
    assert (weights_digest(learner.weights), learner.version) == (before, 3)


def test_updates_are_listed_in_order_and_nothing_else_is(checkpoints: Checkpoints, tmp_path: Path) -> None:
    for update in (10, 2, 0):
        checkpoints.save(update, some_state())
    for name in ("update_x", "update_03", ".update_4.1.new", "update_5.tmp"):
        (tmp_path / "checkpoints" / name).mkdir()
    assert checkpoints.updates() == (0, 2, 10)


def test_the_digest_is_of_the_content_alone(tmp_path: Path) -> None:
    digests = {Checkpoints(tmp_path / str(term), run="run", term=term).save(1, some_state()) for term in (1, 2)}
    assert len(digests) == 1
    assert Checkpoints(tmp_path / "2", run="run", term=2).save(2, some_state(1.5)) not in digests


def test_saving_the_same_again_leaves_the_files_alone(checkpoints: Checkpoints, tmp_path: Path) -> None:
    digest = checkpoints.save(1, some_state())
    before = place_of(tmp_path, 1).stat().st_ino
    assert checkpoints.save(1, some_state()) == digest
    assert place_of(tmp_path, 1).stat().st_ino == before


def test_saving_something_else_or_over_a_corrupt_one_replaces_it(checkpoints: Checkpoints, tmp_path: Path) -> None:
    checkpoints.save(1, some_state())
    other = checkpoints.save(1, some_state(2.0))
    assert checkpoints.read(1).digest == other
    (place_of(tmp_path, 1) / "weights.safetensors").write_bytes(b"")
    assert checkpoints.save(1, some_state(2.0)) == other
    assert checkpoints.read(1).digest == other
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["term", "update_1"]


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_anywhere_is_refused(checkpoints: Checkpoints, tmp_path: Path, name: str) -> None:
    digest = checkpoints.save(1, some_state())
    path = place_of(tmp_path, 1) / name
    body = bytearray(path.read_bytes())
    body[len(body) // 2] ^= 1
    path.write_bytes(bytes(body))
    with pytest.raises(CorruptError, match="update_1"):
        checkpoints.read(1, digest=digest)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_refused(checkpoints: Checkpoints, tmp_path: Path, name: str) -> None:
    checkpoints.save(1, some_state())
    (place_of(tmp_path, 1) / name).unlink()
    with pytest.raises(CorruptError, match="update_1"):
        checkpoints.read(1)


def test_a_whole_checkpoint_that_is_not_the_registered_one_is_refused(checkpoints: Checkpoints) -> None:
    registered = checkpoints.save(1, some_state())
    checkpoints.save(1, some_state(2.0))
    with pytest.raises(CorruptError, match="registered was"):
        checkpoints.read(1, digest=registered)


def test_foreign_checkpoints_are_refused_with_a_reason(checkpoints: Checkpoints, tmp_path: Path) -> None:
    checkpoints.save(1, some_state())
    with pytest.raises(WeightsError, match="of run 'run', not of 'other'"):
        Checkpoints(tmp_path / "checkpoints", run="other", term=2).read(1)
    place_of(tmp_path, 1).rename(place_of(tmp_path, 2))
    with pytest.raises(WeightsError, match="update_2 is update 1"):
        checkpoints.read(2)
    with pytest.raises(UnknownError, match=r"no checkpoint of update 1; there are \[2\]"):
        checkpoints.read(1)


def test_a_newer_schema_is_refused(checkpoints: Checkpoints, tmp_path: Path) -> None:
    checkpoints.save(1, some_state())
    path = place_of(tmp_path, 1) / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": 99}))
    with pytest.raises(SchemaError, match="99"):
        checkpoints.read(1)


def test_a_save_that_dies_half_way_leaves_nothing_visible_and_the_next_life_clears_it(checkpoints: Checkpoints, tmp_path: Path) -> None:
    checkpoints.save(1, some_state())
    with pytest.raises(ValueError):
        checkpoints.save(2, some_state(), {"not": float("nan")})
    assert checkpoints.updates() == (1,)
    leftover = tmp_path / "checkpoints" / ".update_2.123.new"
    leftover.mkdir()
    (leftover / "weights.safetensors").write_bytes(b"half")
    assert Checkpoints(tmp_path / "checkpoints", run="run", term=3).updates() == (1,)
    assert not leftover.exists()


def test_an_older_term_can_neither_open_nor_save_nor_retire(checkpoints: Checkpoints, tmp_path: Path) -> None:
    checkpoints.save(1, some_state())
    newer = Checkpoints(tmp_path / "checkpoints", run="run", term=3)
    for act in (lambda: checkpoints.save(1, some_state(9.0)), lambda: checkpoints.retire(1), lambda: Checkpoints(tmp_path / "checkpoints", run="run", term=2)):
        with pytest.raises(FencedError, match="term 3"):
            act()
    assert newer.updates() == (1,)
    newer.save(2, some_state())


def test_a_retired_checkpoint_is_gone(checkpoints: Checkpoints, tmp_path: Path) -> None:
    checkpoints.save(1, some_state())
    checkpoints.save(2, replace(some_state(), version=8))
    checkpoints.retire(1)
    checkpoints.retire(1)
    assert checkpoints.updates() == (2,)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["term", "update_2"]
