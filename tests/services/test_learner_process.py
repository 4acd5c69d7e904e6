"""The same state and the same batches give bitwise the same weights in other processes (N7's ground)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from penstock.batching import pack
from penstock.learner import GateConfig, LearnerConfig, LossConfig
from penstock.learner.checkpoints import Checkpoints
from penstock.learner.step import Learner
from penstock.models import init_model, load_model
from penstock.types import RlExample, Sample

UPDATES = 3
LOSSES = {
    "ppo_clip": LossConfig(clip_low=1.0, clip_high=50.0),
    "gspo": LossConfig(name="gspo", clip_low=1.0, clip_high=50.0, kl_coef=0.1, entropy_coef=0.01, denominator="sequence_mean"),
}


def batch(update: int) -> RlExample:
    """Groups that share prompts, with long and short replies; another one for each update."""
    random = np.random.default_rng(update)
    samples = []
    for group in range(4):
        prompt = random.integers(0, 256, 20 + 7 * group).tolist()
        for member in range(4):
            ids = np.array([*prompt, member, *random.integers(0, 256, int(random.integers(1, 60)))], dtype=np.int32)
            mask = np.arange(len(ids)) >= len(prompt)
            samples.append(
                Sample(
                    run="run",
                    environment="env",
                    group_id=f"source/0/{group}",
                    rollout_uid=f"{update}-{group}-{member}",
                    path=(0, 1),
                    lengths=(len(prompt), len(ids) - len(prompt)),
                    ids=ids,
                    loss_mask=mask,
                    logprobs=np.where(mask, -6.2, 0).astype(np.float32),
                    versions=np.where(mask, update, -1).astype(np.int32),
                    advantages=np.where(mask, random.normal(), 0).astype(np.float32),
                    mixed_kv=np.zeros(len(ids), dtype=np.bool_),
                )
            )
    return pack(samples, tokens_per_row=256)


def train(loss: str, model: Path, checkpoints: Path, first_update: int) -> list[str]:
    """Train from a checkpoint to the end; digests of the weights after each update, and of the checkpoint at the end."""
    kept = Checkpoints(checkpoints, run="run", term=1)
    # Made-up logprobs: agreement with a sampler is not what is tested here.
    config = LearnerConfig(lr=1e-3, micro_batch_tokens=512, reference="initial", gate=GateConfig(p999_limit=100.0, max_limit=100.0))
    learner = Learner(load_model(model), config, LOSSES[loss], max_lag=1)
    if first_update > 0:
        learner.restore(kept.read(first_update).state)
    digests = []
    for update in range(first_update, UPDATES):
        digests.append(learner.step(batch(update), newest_version=update).digest)
        learner.adopt(update + 1)
        digests.append(kept.save(update + 1, learner.state()))
    return digests


@pytest.mark.parametrize("loss", LOSSES)
def test_another_process_reaches_the_same_bits_from_the_start_and_from_a_checkpoint(loss: str, tmp_path: Path) -> None:
    init_model(tmp_path / "model", size="nano")
    here = train(loss, tmp_path / "model", tmp_path / "here", 0)
    assert len(set(here)) == 2 * UPDATES
    assert "" not in here
    environment = {**os.environ, "PYTHONHASHSEED": "1", "OMP_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, __file__, loss, str(tmp_path)], env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    from_a_checkpoint, from_the_start = json.loads(done.stdout)
    assert from_the_start == here
    assert from_a_checkpoint == here[2:]


if __name__ == "__main__":
    loss, place = sys.argv[1], Path(sys.argv[2])
    print(json.dumps([train(loss, place / "model", place / "here", 1), train(loss, place / "model", place / "there", 0)]))
