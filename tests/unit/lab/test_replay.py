"""A replay reaches the run's own weights, or says what is not as it was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.lab.conftest import ALGORITHM, LEARNER, RUN, UPDATES
from tests.unit.lab.tampering import Forger

from penstock.errors import CorruptError, ReplayError
from penstock.lab.replay import Replayed, replay
from penstock.learner.config import LearnerConfig
from penstock.models import init_model
from penstock.types import CheckpointRecord


def replayed(run_dir: Path, model: Path, config: LearnerConfig = LEARNER) -> Replayed:
    return replay(run_dir, model, ALGORITHM, config)


def test_a_replay_gives_the_final_weights_and_counts_its_updates(run_dir: Path, model: Path) -> None:
    with Forger(run_dir, RUN) as forger:
        snapshot = forger.store.load(RUN)
    assert snapshot is not None
    digests = [version.digest for version in snapshot.versions]
    assert len(set(digests)) == UPDATES  # the initial weights and three updates that were applied
    steps: list[tuple[int, int]] = []
    done = replay(run_dir, model, ALGORITHM, LEARNER, progress=lambda *step: steps.append(step))
    assert done == Replayed(first_update=0, updates=UPDATES, digest=digests[-1])
    assert steps == [(0, 4), (1, 4), (2, 4), (3, 4), (4, 4)]


def test_a_replay_begins_at_the_first_checkpoint_that_is_kept(run_dir: Path, model: Path) -> None:
    whole = replayed(run_dir, model)
    with Forger(run_dir, RUN) as forger:
        snapshot = forger.store.load(RUN)
        assert snapshot is not None
        forger.put(replace(snapshot.checkpoints[0], kept=False))
    assert replayed(run_dir, model) == Replayed(first_update=2, updates=2, digest=whole.digest)


def test_an_exchanged_rollout_stops_the_replay_however_far_the_exchange_went(run_dir: Path, model: Path) -> None:
    with Forger(run_dir, RUN) as forger:
        _, _, rollout = forger.planned(0)
        record, payload = forger.exchanged(rollout)
        forger.put(payload)
    with pytest.raises(CorruptError, match=f"{rollout.uid} is not what was stored"):
        replayed(run_dir, model)
    with Forger(run_dir, RUN) as forger:
        forger.put(record)
    with pytest.raises(CorruptError, match="no longer holds what was planned"):
        replayed(run_dir, model)
    with Forger(run_dir, RUN) as forger:
        forger.put(*forger.exchanged_throughout(0))
    with pytest.raises(ReplayError, match=r"^update 0 gives weights [0-9a-f]{32}, recorded were [0-9a-f]{32}$"):
        replayed(run_dir, model)


def test_a_changed_plan_stops_the_replay(run_dir: Path, model: Path) -> None:
    with Forger(run_dir, RUN) as forger:
        first, second = forger.planned(0)[0], forger.planned(1)[0]
        forger.put(replace(second, groups=first.groups))
    with pytest.raises(ReplayError, match=r"^update 1 gives weights"):
        replayed(run_dir, model)
    with Forger(run_dir, RUN) as forger:
        forger.put(replace(first, groups=second.groups))
    with pytest.raises(ReplayError, match="update 0 cannot be executed again: 4 tokens with loss break the lag"):
        replayed(run_dir, model)


def test_other_settings_are_named_as_the_suspect(run_dir: Path, model: Path) -> None:
    with pytest.raises(ReplayError, match=r"^update 0 gives weights .*; learner was LearnerConfig\(lr=0.001.*, is LearnerConfig\(lr=0.002"):
        replayed(run_dir, model, LearnerConfig(lr=2e-3))


def test_a_checkpoint_that_is_not_the_one_that_was_registered_stops_the_replay(run_dir: Path, model: Path) -> None:
    with Forger(run_dir, RUN) as forger:
        forger.put(CheckpointRecord(run=RUN, update=0, digest="d" * 64, term=1))
    with pytest.raises(CorruptError, match="checkpoint update_0 is"):
        replayed(run_dir, model)


def test_without_a_checkpoint_there_is_nothing_to_start_from(run_dir: Path, model: Path) -> None:
    with Forger(run_dir, RUN) as forger:
        snapshot = forger.store.load(RUN)
        assert snapshot is not None
        forger.put(*(replace(checkpoint, kept=False) for checkpoint in snapshot.checkpoints))
    with pytest.raises(ReplayError, match="has no checkpoint to start from"):
        replayed(run_dir, model)


def test_a_kl_to_the_initial_weights_needs_them_and_watching_it_changes_nothing(run_dir: Path, model: Path, tmp_path: Path) -> None:
    watched = replace(LEARNER, reference="initial")
    assert replayed(run_dir, model, watched) == replayed(run_dir, model)
    init_model(tmp_path / "other", size="nano", seed=99)
    with pytest.raises(ReplayError, match="holds other weights than the run began with"):
        replayed(run_dir, tmp_path / "other", watched)
