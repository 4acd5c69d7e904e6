"""Other settings over stored rollouts. Each group of the run has members rewarded 0 and 1, of two sampled tokens each."""

from __future__ import annotations

import contextlib
import io
import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from tests.unit.lab.conftest import ALGORITHM, LEARNER, RUN, UPDATES, rollout

from penstock.batching.filters import GroupFacts
from penstock.cli import main
from penstock.errors import ConfigError, UnknownError
from penstock.lab.whatif import Settings, WhatIf, whatif
from penstock.lab.whatif_stats import Filtered, Selected, compare
from penstock.learner.config import LossConfig
from penstock.learner.credit import AlgorithmConfig
from penstock.orchestrator.rundir import RunDir
from penstock.types import Group, Purpose, Sample

AS_RUN = Settings(algorithm=ALGORITHM, learner=LEARNER)
HALF = 0.5 / (math.sqrt(0.5) + 1e-6)
"""Advantage under grpo of the better of two members: rewards 0 and 1 have mean 1/2 and sample deviation sqrt(1/2)."""


def asked(run_dir: Path, algorithm: AlgorithmConfig, *, updates: tuple[int, int] | None = None, checkpoint: int | None = None, model: Path = Path()) -> WhatIf:
    return whatif(run_dir, model, AS_RUN, Settings(algorithm=algorithm, learner=LEARNER), updates=updates, checkpoint=checkpoint)


def test_another_norm_gives_other_advantages_of_the_same_sign(run_dir: Path) -> None:
    found = asked(run_dir, AlgorithmConfig(options={"norm": "mean_norm"}))
    assert (found.run, found.first_update, found.last_update) == (RUN, 0, UPDATES - 1)
    (everything,) = found.comparisons
    assert (everything.planned_groups, everything.planned_rollouts, everything.tokens_in_both) == (4, 8, 16)
    for side, size in ((everything.as_run, HALF), (everything.changed, 0.5)):
        assert (side.updates, side.groups, side.rollouts, side.tokens, side.filtered) == (4, 4, 8, 16, {})
        assert side.advantage_mean == pytest.approx(0, abs=1e-7)
        assert [side.advantage_std, side.advantage_min, side.advantage_max] == pytest.approx([size, -size, size])
        assert (side.zero_rollouts, side.zero_tokens) == (0, 0)
    assert everything.correlation == pytest.approx(1)
    assert everything.sign_agreement == 1
    assert everything.histogram is not None
    assert sum(everything.histogram.as_run) == sum(everything.histogram.changed) == 16
    assert everything.histogram.as_run[0] == everything.histogram.as_run[-1] == 8
    assert everything.histogram.changed[0] == 0


def test_a_filter_drops_the_rollouts_that_it_refuses_and_is_named(run_dir: Path) -> None:
    (everything,) = asked(run_dir, AlgorithmConfig(filters={"over_long": {"max_tokens": 1}}), updates=(1, 2)).comparisons
    assert (everything.as_run.rollouts, everything.as_run.tokens) == (4, 8)
    changed = everything.changed
    assert (changed.updates, changed.groups, changed.rollouts, changed.tokens) == (0, 0, 0, 0)
    assert changed.filtered == {"over_long": Filtered(rollouts=4, length=2.0, longest=2)}
    assert (changed.length, changed.longest) == (None, None)
    assert (everything.as_run.length, everything.as_run.longest) == (2.0, 2)
    assert (changed.advantage_mean, changed.zero_rollouts, changed.loss) == (None, None, None)
    assert (everything.tokens_in_both, everything.correlation, everything.sign_agreement) == (0, None, None)


def at_the_newest(group: GroupFacts) -> list[bool]:
    """A filter of somebody's own."""
    return [member.oldest_version == group.newest_version for member in group.members]


def test_filters_see_ages_as_they_were_at_the_plan(run_dir: Path) -> None:
    # Every rollout of the run was sampled by what was newest when it was planned, whatever is newest now.
    (everything,) = asked(run_dir, AlgorithmConfig(filters={f"{__name__}:at_the_newest": {}})).comparisons
    assert (everything.changed.rollouts, everything.changed.filtered) == (8, {})


def test_under_the_stored_logprobs_the_loss_is_minus_the_mean_advantage_and_its_denominator_counts(run_dir: Path) -> None:
    fixed = AlgorithmConfig(loss=LossConfig(denominator="fixed", fixed_denominator=2.0))
    shifted = replace(fixed, adv_estimator="tests.unit.lab.test_whatif:as_rewarded")
    (everything,) = asked(run_dir, shifted).comparisons
    before, after = everything.as_run.loss, everything.changed.loss
    assert before is not None
    assert after is not None
    assert before.loss == pytest.approx(0, abs=1e-7)
    assert after.loss == pytest.approx(-1.0)  # two tokens with advantage 1 in each update, halved
    for loss in (before, after):
        assert (loss.ratio_mean, loss.ratio_min, loss.ratio_max, loss.clip_frac, loss.kl_k3) == (1, 1, 1, 0, 0)
        assert loss.entropy is None
        assert loss.effective_sample_size == pytest.approx(1)
    assert everything.changed.zero_rollouts == everything.changed.zero_tokens == 0.5
    assert everything.sign_agreement == 0.5


def as_rewarded(rewards: np.ndarray) -> np.ndarray:
    """An estimator that compares nothing with anything."""
    return np.asarray(rewards, np.float64)


def test_under_a_checkpoint_the_ratios_are_those_of_its_weights(run_dir: Path, model: Path) -> None:
    tight = AlgorithmConfig(loss=LossConfig(clip_low=0.0, clip_high=0.0, entropy_coef=0.1))
    first = asked(run_dir, tight, checkpoint=0, model=model)
    second = asked(run_dir, tight, checkpoint=2, model=model)
    losses = [found.comparisons[0].as_run.loss for found in (first, second)]
    changed = first.comparisons[0].changed.loss
    assert losses[0] is not None
    assert losses[1] is not None
    assert changed is not None
    assert losses[0].ratio_max != 1
    assert losses[0].ratio_mean != losses[1].ratio_mean
    assert changed.ratio_mean == losses[0].ratio_mean
    assert changed.clip_frac > 0  # with bounds at 1 a ratio is out of one of them, whatever it is
    assert changed.entropy == losses[0].entropy
    assert changed.entropy is not None
    assert changed.entropy > 0
    assert not [note for note in first.notes if "entropy" in note]
    assert [note for note in asked(run_dir, tight).notes if "entropy" in note]


def test_environments_are_compared_each_for_itself() -> None:
    def side(advantages: dict[str, float]) -> list[Selected]:
        return [Selected(groups=tuple(groups), refused={}, samples=tuple(sample(name, value) for name, value in advantages.items()))]

    groups = [Group(run=RUN, id=name, environment=name, problem_id="p", purpose=Purpose.TRAIN, rollouts=(rollout(0, 0, 0),)) for name in ("a", "b")]
    before, after = side({"a": 1.0, "b": -1.0}), side({"a": -2.0, "b": -2.0})
    everything, only_b = (compare(name, [groups], before, after, (None, None)) for name in (None, "b"))
    assert (everything.planned_groups, everything.tokens_in_both, everything.sign_agreement) == (2, 2, 0.5)
    assert everything.correlation is None  # one of them is constant
    assert (only_b.planned_groups, only_b.tokens_in_both, only_b.sign_agreement) == (1, 1, 1.0)
    assert (only_b.as_run.advantage_mean, only_b.changed.advantage_mean) == (-1, -2)


def sample(environment: str, advantage: float) -> Sample:
    """A prompt token and a sampled one."""
    return Sample(
        run=RUN,
        environment=environment,
        group_id=environment,
        rollout_uid=environment,
        path=(0, 1),
        lengths=(1, 1),
        ids=np.array([1, 2], np.int32),
        loss_mask=np.array([False, True]),
        logprobs=np.array([0, -1], np.float32),
        versions=np.array([-1, 0], np.int32),
        advantages=np.array([0, advantage], np.float32),
        mixed_kv=np.zeros(2, np.bool_),
    )


def test_updates_and_checkpoints_that_are_not_there_are_refused_with_those_that_are(run_dir: Path, model: Path) -> None:
    with pytest.raises(UnknownError, match="updates 2-4 are not all there: run small has 0-3"):
        asked(run_dir, ALGORITHM, updates=(2, 4))
    with pytest.raises(UnknownError, match="keeps no checkpoint of update 1; it keeps 0, 2"):
        asked(run_dir, ALGORITHM, checkpoint=1, model=model)
    with pytest.raises(ConfigError, match="greedy"):
        asked(run_dir, AlgorithmConfig(adv_estimator="remax"))


CONFIG = """
run: {name: small, updates: 4, dir: DIR}
model: {path: MODEL}
envs: {env: {kind: sort}}
batch: {groups_per_update: 1}
learner: {lr: 0.001}
"""


@pytest.fixture
def with_config(run_dir: Path, model: Path) -> Path:
    (run_dir / "config.yaml").write_text(CONFIG.replace("DIR", str(run_dir.parent)).replace("MODEL", str(model)))
    RunDir(run_dir).lock.touch()
    return run_dir


def penstock(*words: str) -> tuple[int, str, str]:
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error), pytest.raises(SystemExit) as ended:
        main(words)
    return int(ended.value.code or 0), out.getvalue(), error.getvalue()


def test_the_verb_prints_a_table_json_and_pictures(with_config: Path, tmp_path: Path) -> None:
    words = ("whatif", str(with_config), "algorithm.options.norm=mean_norm")
    code, out, error = penstock(*words, "--updates", "1-2", "--picture", str(tmp_path / "a.svg"))
    assert (code, error) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "run small, updates 1-2, losses under the stored logprobs"
    assert [line.split()[-2:] for line in lines if line.startswith("advantage max")] == [["0.7071", "0.5"]]
    svg = ElementTree.parse(tmp_path / "a.svg").getroot()
    heights = [float(bar.get("height", "0")) for bar in svg.iter("{http://www.w3.org/2000/svg}rect")]
    assert len([height for height in heights if height > 0]) == 4
    code, out, _ = penstock(*words, "--json", "--checkpoint", "0", "--picture", str(tmp_path / "a.html"))
    found = json.loads(out)
    assert code == 0
    assert found["comparisons"][0]["changed"]["advantage_max"] == 0.5
    assert found["comparisons"][0]["as_run"]["loss"]["ratio_max"] != 1
    assert "losses under the weights of checkpoint update_0" in (tmp_path / "a.html").read_text()


def test_options_of_the_estimator_that_a_run_had_are_not_given_to_another(with_config: Path) -> None:
    config = with_config / "config.yaml"
    config.write_text(config.read_text() + "algorithm: {options: {norm: mean_norm}}\n")
    code, out, error = penstock("whatif", str(with_config), "algorithm.adv_estimator=gigpo")
    assert (code, error) == (0, "")
    assert "changed: algorithm.options={} algorithm.adv_estimator=gigpo" in out
    code, out, error = penstock("whatif", str(with_config), "algorithm.adv_estimator=rloo", "algorithm.options.rloo_std=true")
    assert (code, error) == (0, "")
    code, out, _ = penstock("whatif", str(with_config), "algorithm.adv_estimator=grpo", "algorithm.options.ddof=0")
    assert code == 0
    assert [line.split()[-2:] for line in out.splitlines() if line.startswith("advantage max")] == [["0.5", "0.5"]]


def test_misuse_is_one_line_and_exit_2(with_config: Path, tmp_path: Path) -> None:
    change = "algorithm.adv_estimator=rloo"
    for words, sentence in (
        ((), "name a setting to change"),
        (("algorithm.adv_estimatorr=rloo",), "did you mean algorithm.adv_estimator?"),
        (("algorithm.adv_estimator=rlooo",), "rloo"),
        (("learner.lr=1",), "learner.lr changes nothing about rollouts that are stored"),
        (("nonsense",), "an override must look like key.sub=value"),
        ((change, "--updates", "3-1"), "--updates must look like 20-29"),
        ((change, "--picture", str(tmp_path / "a.png")), "--picture must be a .html or .svg file"),
    ):
        code, out, error = penstock("whatif", str(with_config), *words)
        assert (code, out, error.count("\n")) == (2, "", 1), error
        assert sentence in error
    assert penstock("whatif", str(tmp_path / "absent"), change)[0] != 0
    assert penstock("whatif", str(with_config), change, "--updates", "7")[0] == 1


def test_without_torch_everything_but_the_loss_is_there(with_config: Path) -> None:
    program = (
        "import sys, importlib.util as u\n"
        "sys.modules['torch'] = None\n"
        "found = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'torch' else found(name, *rest)\n"
        "from penstock.cli import main\n"
        f"main(['whatif', {str(with_config)!r}, 'algorithm.options.norm=mean_norm'])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "advantage max" in done.stdout
    assert "note: torch is not installed: loss statistics are left out" in done.stdout
