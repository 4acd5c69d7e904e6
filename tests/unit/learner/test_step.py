from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from transformers import PreTrainedModel

from penstock.batching import pack
from penstock.errors import ConfigError, InvariantError, WeightsError
from penstock.learner import GateConfig, LearnerConfig, LossConfig
from penstock.learner.passes import logprobs_of
from penstock.learner.step import Learner
from penstock.models import keep_weights, load_model, weights_digest
from penstock.types import RlExample, Sample

SampledBy = Callable[..., list[Sample]]


@pytest.fixture
def batch(model_directory: Path, samples: list[Sample], sampled_by: SampledBy) -> RlExample:
    """Sampled by version 0, the weights in the model directory."""
    return pack(sampled_by(load_model(model_directory), samples), tokens_per_row=64)


@pytest.fixture
def learner(model: PreTrainedModel) -> Learner:
    return Learner(model, LearnerConfig(lr=1e-2), LossConfig(), max_lag=1)


def fingerprint(learner: Learner) -> tuple[object, ...]:
    """Everything an update may change, to the bit."""
    state = learner.state()
    return weights_digest(state.weights), weights_digest(state.moments.first), weights_digest(state.moments.second), state.num_applied, state.version


def trained_once(learner: Learner, batch: RlExample) -> Learner:
    assert learner.step(batch, newest_version=0).kind == "applied"
    learner.adopt(1)
    return learner


def sampled_now(learner: Learner, model: PreTrainedModel, batch: RlExample) -> RlExample:
    """The same tokens, as if sampled from the learner's weights at its version."""
    logprobs = np.zeros(batch.loss_mask.shape, np.float32)
    logprobs[batch.loss_mask] = logprobs_of(model, batch, batch.loss_mask, learner.config)
    return replace(batch, policy_logprobs=logprobs, versions=np.where(batch.loss_mask, learner.version, -1).astype(np.int32))


def half_and_half(first: RlExample, second: RlExample) -> RlExample:
    """Odd tokens with loss from one, even ones from the other, in logprob and version."""
    odd = np.cumsum(first.loss_mask).reshape(first.loss_mask.shape) % 2 == 1
    return replace(
        first,
        policy_logprobs=np.where(odd, first.policy_logprobs, second.policy_logprobs),
        versions=np.where(odd, first.versions, second.versions),
    )


def test_a_step_makes_rewarded_tokens_likelier(learner: Learner, model: PreTrainedModel, batch: RlExample) -> None:
    before = logprobs_of(model, batch, batch.loss_mask, learner.config)
    result = learner.step(batch, newest_version=0)
    after = logprobs_of(model, batch, batch.loss_mask, learner.config)
    assert (result.kind, result.reason, result.digest) == ("applied", None, weights_digest(learner.weights))
    assert ((after - before) * batch.advantages[batch.loss_mask]).sum() > 0


def test_the_statistics_are_what_they_say(learner: Learner, batch: RlExample) -> None:
    result = learner.step(batch, newest_version=1)
    stats = result.stats
    assert stats is not None
    mask = batch.loss_mask
    assert stats.tokens == mask.sum() == result.mismatch.tokens
    assert stats.packed_tokens == (batch.segment_ids > 0).sum()
    # On policy every ratio is 1, so the loss is minus the mean advantage.
    assert stats.loss == pytest.approx(-batch.advantages[mask].mean(), rel=1e-5)
    assert (stats.ratio_mean, stats.ratio_min, stats.ratio_max) == (pytest.approx(1, abs=1e-5),) * 3
    assert (stats.kl_k1, stats.kl_k2, stats.kl_k3) == (pytest.approx(0, abs=1e-6), pytest.approx(0, abs=1e-9), pytest.approx(0, abs=1e-9))
    assert (stats.clip_frac, stats.clip_fracs) == (0, {"low": 0, "high": 0})
    assert stats.kl_reference is None
    assert stats.effective_sample_size == pytest.approx(1, abs=1e-9)
    assert stats.environments.keys() == {"env"} and stats.environments["env"].tokens == stats.tokens
    assert (stats.lag_mean, stats.lag_max) == (1, 1)
    assert stats.lr == pytest.approx(1e-2 / 5)
    assert stats.grad_norm > 0
    assert 0 < stats.entropy < np.log(40)
    assert result.mismatch.max < 1e-5


def test_the_gradient_is_clipped_by_its_global_norm(model_directory: Path, batch: RlExample) -> None:
    norms = []
    for clip in (1e-3, float("inf")):
        learner = Learner(load_model(model_directory), LearnerConfig(clip_grad=clip), LossConfig(), max_lag=1)
        learner.step(batch, newest_version=0)
        learner.adopt(1)
        norms.append(sum(float(first.double().pow(2).sum()) for first in learner.state().moments.first.values()) ** 0.5)
    # After one update the first moment is a tenth of the gradient.
    assert norms[0] == pytest.approx(1e-4, rel=1e-5)
    assert norms[1] > 1e-3


@pytest.mark.parametrize("newest, version", [(2, 0), (5, 3), (0, 1), (0, -1)])
def test_a_token_too_old_or_from_the_future_stops_before_anything_changes(learner: Learner, batch: RlExample, newest: int, version: int) -> None:
    before = fingerprint(learner)
    versions = np.where(batch.loss_mask, newest, -1).astype(np.int32)
    row, column = np.argwhere(batch.loss_mask)[3]
    versions[row, column] = version
    with pytest.raises(InvariantError, match=f"1 tokens .* row {row}, column {column} has version {version}, the plan's newest is {newest}"):
        learner.step(replace(batch, versions=versions), newest_version=newest)
    assert fingerprint(learner) == before


def test_versions_without_loss_are_not_looked_at(learner: Learner, batch: RlExample) -> None:
    versions = np.where(batch.loss_mask, batch.versions, 77).astype(np.int32)
    assert learner.step(replace(batch, versions=versions), newest_version=0).kind == "applied"


def test_one_wrong_logprob_is_a_skip_that_changes_nothing(learner: Learner, batch: RlExample) -> None:
    before = fingerprint(learner)
    logprobs = batch.policy_logprobs.copy()
    logprobs[tuple(np.argwhere(batch.loss_mask)[5])] -= 1e-3
    result = learner.step(replace(batch, policy_logprobs=logprobs), newest_version=0)
    assert (result.kind, result.reason, result.digest) == ("skipped", "mismatch", "")
    assert "disagree about version 0: 1 of its" in result.cause
    assert result.mismatch.max == pytest.approx(1e-3, rel=0.01)
    assert fingerprint(learner) == before


def test_a_server_that_serves_stale_weights_under_a_new_name_is_caught(learner: Learner, batch: RlExample) -> None:
    trained_once(learner, batch)
    stale = replace(batch, versions=np.where(batch.loss_mask, 1, -1).astype(np.int32))
    assert learner.step(stale, newest_version=1).reason == "mismatch"


def test_older_tokens_are_compared_under_the_weights_that_sampled_them(learner: Learner, model: PreTrainedModel, batch: RlExample) -> None:
    trained_once(learner, batch)
    both = half_and_half(batch, sampled_now(learner, model, batch))
    assert set(both.versions[both.loss_mask]) == {0, 1}
    result = learner.step(both, newest_version=1)
    assert (result.kind, result.mismatch.tokens) == ("applied", both.loss_mask.sum())
    assert result.mismatch.max < 1e-5
    assert result.stats is not None and result.stats.ratio_max - result.stats.ratio_min > 1e-3


def test_exchanged_versions_are_caught(learner: Learner, model: PreTrainedModel, batch: RlExample) -> None:
    trained_once(learner, batch)
    both = half_and_half(batch, sampled_now(learner, model, batch))
    exchanged = replace(both, versions=np.where(both.loss_mask, 1 - both.versions, -1).astype(np.int32))
    assert learner.step(exchanged, newest_version=1).reason == "mismatch"


def test_comparing_under_older_weights_leaves_the_current_ones_in_place(learner: Learner, model: PreTrainedModel, batch: RlExample) -> None:
    trained_once(learner, batch)
    current = learner.weights
    broken = half_and_half(batch, replace(sampled_now(learner, model, batch), policy_logprobs=batch.policy_logprobs))
    before = fingerprint(learner)
    assert learner.step(broken, newest_version=1).reason == "mismatch"
    assert fingerprint(learner) == before
    assert all(tensor.data_ptr() == current[name].data_ptr() for name, tensor in learner.weights.items())


def test_a_new_life_finds_older_weights_on_disk(model_directory: Path, batch: RlExample, tmp_path: Path) -> None:
    first = Learner(load_model(model_directory), LearnerConfig(lr=1e-2), LossConfig(), max_lag=1)
    digest = keep_weights(tmp_path, first.weights)
    trained_once(first, batch)
    model = load_model(model_directory)
    second = Learner(model, LearnerConfig(lr=1e-2), LossConfig(), max_lag=1, weights_directory=tmp_path)
    second.restore(first.state())
    both = half_and_half(batch, sampled_now(second, model, batch))
    with pytest.raises(WeightsError, match="version 0 sampled tokens of this batch but its weights are not kept"):
        second.step(both, newest_version=1)
    second.snapshots.name(0, digest)
    assert second.step(both, newest_version=1).digest == first.step(both, newest_version=1).digest != ""


def test_only_max_lag_older_versions_stay_in_memory(learner: Learner, model: PreTrainedModel, batch: RlExample) -> None:
    for version in range(4):
        assert learner.step(sampled_now(learner, model, batch), newest_version=version).kind == "applied"
        learner.adopt(version + 1)
    assert learner.snapshots.versions == (3,)


def test_tokens_with_a_mixed_cache_are_left_out_and_counted(learner: Learner, batch: RlExample) -> None:
    row, column = np.argwhere(batch.loss_mask)[2]
    logprobs, mixed = batch.policy_logprobs.copy(), batch.mixed_kv.copy()
    logprobs[row, column] -= 0.1
    mixed[row, column] = True
    result = learner.step(replace(batch, policy_logprobs=logprobs, mixed_kv=mixed), newest_version=0)
    assert result.kind == "applied"
    assert (result.mismatch.mixed_kv, result.mismatch.tokens) == (1, batch.loss_mask.sum() - 1)


@pytest.mark.parametrize("array", ["advantages", "policy_logprobs"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_batch_with_nan_or_infinity_is_a_skip_that_changes_nothing(learner: Learner, batch: RlExample, array: str, value: float) -> None:
    before = fingerprint(learner)
    spoiled = getattr(batch, array).copy()
    spoiled[tuple(np.argwhere(batch.loss_mask)[0])] = value
    result = learner.step(replace(batch, **{array: spoiled}), newest_version=0)
    assert (result.kind, result.reason, result.cause) == ("skipped", "non_finite", f"{array} of the batch hold NaN or infinity")
    assert fingerprint(learner) == before


def test_an_overflowing_gradient_is_a_skip_that_changes_nothing(learner: Learner, batch: RlExample) -> None:
    before = fingerprint(learner)
    huge = np.where(batch.loss_mask, 3e38 * np.sign(batch.advantages), 0).astype(np.float32)
    result = learner.step(replace(batch, advantages=huge), newest_version=0)
    assert (result.kind, result.reason) == ("skipped", "non_finite")
    assert "gradient of" in result.cause
    assert fingerprint(learner) == before


def test_an_update_that_overflows_the_weights_is_a_skip_that_changes_nothing(model: PreTrainedModel, batch: RlExample) -> None:
    learner = Learner(model, LearnerConfig(lr=1e20, weight_decay=1e22), LossConfig(), max_lag=1)
    before = fingerprint(learner)
    result = learner.step(batch, newest_version=0)
    assert (result.kind, result.reason) == ("skipped", "non_finite")
    assert "the update would make" in result.cause
    assert fingerprint(learner) == before


def test_after_a_skip_the_run_goes_on_as_if_it_had_not_been(model_directory: Path, batch: RlExample) -> None:
    digests = []
    for with_skip in (False, True):
        learner = Learner(load_model(model_directory), LearnerConfig(), LossConfig(), max_lag=1)
        if with_skip:
            assert learner.step(replace(batch, advantages=np.full_like(batch.advantages, np.nan)), newest_version=0).kind == "skipped"
            assert learner.step(replace(batch, policy_logprobs=batch.policy_logprobs - 1), newest_version=0).kind == "skipped"
        digests.append(learner.step(batch, newest_version=0).digest)
    assert digests[0] == digests[1]


def test_a_batch_without_loss_is_a_skip(learner: Learner, batch: RlExample) -> None:
    assert learner.step(replace(batch, loss_mask=np.zeros_like(batch.loss_mask)), newest_version=0).reason == "no_loss"


def test_weights_without_a_version_cannot_be_trained_or_saved(learner: Learner, batch: RlExample) -> None:
    learner.step(batch, newest_version=0)
    with pytest.raises(InvariantError, match="adopt"):
        learner.step(batch, newest_version=0)
    with pytest.raises(InvariantError, match="adopt"):
        learner.state()
    learner.adopt(9)
    assert learner.version == 9
    with pytest.raises(InvariantError, match="version 9 already"):
        learner.adopt(10)


def test_a_restored_learner_goes_on_bit_for_bit(model_directory: Path, batch: RlExample) -> None:
    model = load_model(model_directory)
    first = trained_once(Learner(model, LearnerConfig(lr=1e-2), LossConfig(), max_lag=1), batch)
    second = Learner(load_model(model_directory), LearnerConfig(lr=1e-2), LossConfig(), max_lag=1)
    second.restore(first.state())
    assert fingerprint(second) == fingerprint(first)
    nxt = sampled_now(first, model, batch)
    assert first.step(nxt, newest_version=1).digest == second.step(nxt, newest_version=1).digest != ""


def test_the_state_of_another_model_is_refused(learner: Learner) -> None:
    before = fingerprint(learner)
    state = learner.state()
    short = {name: tensor for name, tensor in state.weights.items() if "norm" not in name}
    with pytest.raises(WeightsError):
        learner.restore(replace(state, weights=short))
    with pytest.raises(WeightsError):
        learner.restore(replace(state, moments=replace(state.moments, first=short)))
    assert fingerprint(learner) == before


def test_the_policy_is_what_was_sampled_from_at_its_temperature(model: PreTrainedModel, samples: list[Sample], sampled_by: SampledBy) -> None:
    batch = pack(sampled_by(model, samples, temperature=0.7), tokens_per_row=64)
    assert Learner(model, LearnerConfig(temperature=1.0), LossConfig(), max_lag=1).step(batch, newest_version=0).reason == "mismatch"
    assert Learner(model, LearnerConfig(temperature=0.7), LossConfig(), max_lag=1).step(batch, newest_version=0).kind == "applied"


def test_the_bounds_of_the_gate_are_the_configs(model: PreTrainedModel, batch: RlExample) -> None:
    config = LearnerConfig(gate=GateConfig(p999_limit=2.0, max_limit=2.0))
    off = replace(batch, policy_logprobs=batch.policy_logprobs - 1)
    assert Learner(model, config, LossConfig(), max_lag=1).step(off, newest_version=0).kind == "applied"


def test_an_unknown_loss_is_refused_at_the_start(model: PreTrainedModel) -> None:
    with pytest.raises(ConfigError, match="did you mean"):
        Learner(model, LearnerConfig(), LossConfig(name="ppo"), max_lag=1)


def test_leaving_the_gate_out_changes_no_result(model_directory: Path, batch: RlExample) -> None:
    gated, ungated = (
        Learner(load_model(model_directory), LearnerConfig(), LossConfig(), max_lag=1).step(batch, newest_version=0, gated=gate) for gate in (True, False)
    )
    assert gated.digest == ungated.digest != ""
    assert (gated.mismatch.tokens, ungated.mismatch.tokens) == (batch.loss_mask.sum(), 0)
