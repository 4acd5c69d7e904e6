"""The policy that a KL is measured against."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from penstock.batching import pack
from penstock.errors import ConfigError, InvariantError
from penstock.learner import LearnerConfig, LossConfig
from penstock.learner.passes import logprobs_of
from penstock.learner.step import Learner
from penstock.models import load_model, model_tensors, weights_digest, write_weights
from penstock.types import RlExample, Sample

SampledBy = Callable[..., list[Sample]]
KL = LossConfig(kl_coef=0.5)


@pytest.fixture
def batch(model_directory: Path, samples: list[Sample], sampled_by: SampledBy) -> RlExample:
    return pack(sampled_by(load_model(model_directory), samples), tokens_per_row=64)


def sampled_now(learner: Learner, model: PreTrainedModel, batch: RlExample) -> RlExample:
    logprobs = np.zeros(batch.loss_mask.shape, np.float32)
    logprobs[batch.loss_mask] = logprobs_of(model, batch, batch.loss_mask, learner.config)
    return replace(batch, policy_logprobs=logprobs, versions=np.where(batch.loss_mask, learner.version, -1).astype(np.int32))


def kl_after(learner: Learner, batch: RlExample) -> float:
    stats = learner.step(batch, newest_version=batch.versions.max()).stats
    assert stats is not None and stats.kl_reference is not None
    return stats.kl_reference


def test_the_initial_weights_stay_the_reference_while_the_policy_leaves_them(model: PreTrainedModel, batch: RlExample) -> None:
    learner = Learner(model, LearnerConfig(lr=1e-2, warmup_updates=0, reference="initial"), KL, max_lag=1)
    initial = learner.reference.digest
    assert initial == weights_digest(learner.weights)
    assert kl_after(learner, batch) == pytest.approx(0, abs=1e-9)
    learner.adopt(1)
    expected = batch.policy_logprobs[batch.loss_mask].astype(np.float64)
    now = sampled_now(learner, model, batch)
    differences = now.policy_logprobs[batch.loss_mask] - expected
    assert kl_after(learner, now) == pytest.approx(float((np.exp(-differences) - 1 + differences).mean()), rel=1e-3)
    assert learner.reference.digest == initial != weights_digest(learner.weights)


def test_the_penalty_draws_the_policy_back(model: PreTrainedModel, batch: RlExample) -> None:
    learner = Learner(model, LearnerConfig(lr=3e-3, warmup_updates=0, reference="initial"), KL, max_lag=1)
    learner.step(batch, newest_version=0)
    learner.adopt(1)
    found = []
    for version in range(1, 6):
        now = sampled_now(learner, model, batch)
        found.append(kl_after(learner, replace(now, advantages=np.zeros_like(now.advantages))))
        learner.adopt(version + 1)
    assert 0 < found[-1] < found[0] / 2


def test_another_model_may_be_the_reference(model: PreTrainedModel, model_directory: Path, batch: RlExample) -> None:
    here, there = (Learner(load_model(model_directory), LearnerConfig(reference=name), KL, max_lag=1) for name in ("initial", str(model_directory)))
    assert here.reference.digest == there.reference.digest
    assert here.step(batch, newest_version=0).digest == there.step(batch, newest_version=0).digest != ""


def test_the_reference_changes_nothing_but_what_the_loss_asks_of_it(model_directory: Path, batch: RlExample) -> None:
    without, watched = (Learner(load_model(model_directory), LearnerConfig(reference=name), LossConfig(), max_lag=1) for name in (None, "initial"))
    assert without.step(batch, newest_version=0).digest == watched.step(batch, newest_version=0).digest != ""


def test_a_later_life_measures_against_the_same_weights(model_directory: Path, batch: RlExample) -> None:
    config = LearnerConfig(lr=1e-2, reference="initial")
    model = load_model(model_directory)
    first = Learner(model, config, KL, max_lag=1)
    first.step(batch, newest_version=0)
    first.adopt(1)
    second = Learner(load_model(model_directory), config, KL, max_lag=1)
    second.restore(first.state())
    following = sampled_now(first, model, batch)
    assert first.step(following, newest_version=1).digest == second.step(following, newest_version=1).digest != ""


def test_stored_logprobs_are_taken_as_they_came(model: PreTrainedModel, batch: RlExample) -> None:
    learner = Learner(model, LearnerConfig(reference="stored"), KL, max_lag=1)
    with pytest.raises(InvariantError, match="bring no reference_logprobs"):
        learner.step(batch, newest_version=0)
    brought = replace(batch, reference_logprobs=batch.policy_logprobs - np.float32(1))
    assert kl_after(learner, brought) == pytest.approx(np.exp(-1) - 1 + 1, rel=1e-4)
    assert learner.reference.digest is None


def test_a_kl_needs_a_reference(model: PreTrainedModel) -> None:
    with pytest.raises(ConfigError, match=r"kl_coef is 0.5 and learner.reference is null"):
        Learner(model, LearnerConfig(), KL, max_lag=1)


def test_a_model_with_another_vocabulary_is_refused(model: PreTrainedModel, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=12, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1)
    config.save_pretrained(tmp_path)
    write_weights(tmp_path / "model.safetensors", model_tensors(LlamaForCausalLM(config)))
    with pytest.raises(ConfigError, match="has 12 tokens, the one that is trained 40"):
        Learner(model, LearnerConfig(reference=str(tmp_path)), LossConfig(), max_lag=1)
    with pytest.raises(ConfigError, match=r"no config\.json"):
        Learner(model, LearnerConfig(reference=str(tmp_path / "nothing")), LossConfig(), max_lag=1)
