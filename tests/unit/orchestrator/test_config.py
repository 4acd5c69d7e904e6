from pathlib import Path

import pytest

from penstock.config import dump
from penstock.errors import ConfigError
from penstock.orchestrator.config import load_run
from penstock.orchestrator.identity import check_same_run
from penstock.orchestrator.parts import cut_request, laws, worker_config

EXAMPLES = Path(__file__).parents[3] / "examples"


def complaint(path: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_run(path, overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_resolved_config_loads_back_to_the_same_run(run_yaml: Path) -> None:
    config = load_run(run_yaml)
    assert load_run(dump(config)) == config
    assert config.run_dir.path == run_yaml.parent / "runs" / "tiny"


def test_each_wrong_setting_is_named(run_yaml: Path) -> None:
    assert "learner.lrr: unknown key (value 1); did you mean learner.lr?" in complaint(run_yaml, "learner.lrr=1")
    assert complaint(run_yaml, "run.updates=many").startswith("run.updates: must be an integer")
    assert "run.updates must be 1 or more, got 0" in complaint(run_yaml, "run.updates=0")
    assert "run.name" in complaint(run_yaml, "run.name=../up")
    assert "batch" in complaint(run_yaml, "batch.budget_tokens=100")
    assert "did you mean 'sort'" in complaint(run_yaml, "envs.sort.kind=sortt")
    assert "envs.sort" in complaint(run_yaml, "envs.sort.params={digits: 3}")
    assert "is not a model directory" in complaint(run_yaml, "model.path=missing")
    assert "no environment" in complaint(run_yaml, "envs={}") or "at least one" in complaint(run_yaml, "envs={}")


def test_settings_that_contradict_each_other_are_refused(run_yaml: Path) -> None:
    assert "actor.group_size = 4" in complaint(run_yaml, "freshness.min_group_size=5")
    assert "actor.temperature 0.5" in complaint(run_yaml, "actor.temperature=0.5")
    assert "add up to 1.1" in complaint(run_yaml, "envs.other={kind: sort, fraction: 0.5}", "envs.sort.fraction=0.6")


def test_losses_filters_and_references_are_checked_before_anything_starts(run_yaml: Path) -> None:
    assert "did you mean 'gspo'" in complaint(run_yaml, "algorithm.loss.name=gsp")
    assert complaint(run_yaml, "algorithm.loss.dual_clip=1").startswith("algorithm.loss.dual_clip must be above 1 + clip_high = 1.2")
    assert "did you mean 'zero_variance'" in complaint(run_yaml, "algorithm.filters.zero_varianc=")
    assert complaint(run_yaml, "algorithm.filters.over_long=").startswith("algorithm.filters.over_long.max_tokens is missing")
    assert "learner.reference is null" in complaint(run_yaml, "algorithm.loss.kl_coef=0.1")
    assert complaint(run_yaml, "learner.reference=missing").startswith("learner.reference: ")


def test_a_reference_is_a_word_or_a_directory_made_absolute(run_yaml: Path) -> None:
    assert load_run(run_yaml, ["learner.reference=initial", "algorithm.loss.kl_coef=0.1"]).learner.reference == "initial"
    model = run_yaml.parent / "model"
    assert load_run(run_yaml, [f"learner.reference={model.parent}/./model"]).learner.reference == str(model)


def test_the_buffer_is_told_the_filters_that_are_built_in(run_yaml: Path) -> None:
    config = load_run(run_yaml, ["algorithm.filters.zero_variance=", "algorithm.filters.over_long.max_tokens=9", "algorithm.filters.builtins:list="])
    assert laws(config).filters == {"zero_variance": {}, "over_long": {"max_tokens": 9}}
    assert load_run(dump(config)) == config


def test_credits_that_could_never_fill_a_batch_are_refused_with_the_number_that_could(run_yaml: Path) -> None:
    tokens = ("batch.groups_per_update=null", "batch.budget_tokens=100", "freshness.max_lag=0")
    # A group may take 4 x 8 = 32 tokens, and one at least must find credit.
    assert complaint(run_yaml, *tokens, "freshness.tokens_per_update=31").endswith("give 32 or more")
    assert load_run(run_yaml, [*tokens, "freshness.tokens_per_update=32"]).credit_tokens == 32


def test_credits_are_a_multiple_of_a_batch_in_the_unit_that_batches_are_cut_by(run_yaml: Path) -> None:
    by_groups = load_run(run_yaml, ["freshness.max_lag=3"])
    assert (laws(by_groups).credit_groups, by_groups.credit_tokens) == (8, None)
    by_tokens = load_run(run_yaml, ["batch.groups_per_update=null", "batch.budget_tokens=100", "freshness.max_lag=3"])
    assert (laws(by_tokens).credit_groups, laws(by_tokens).credit_tokens) == (None, 400)


def test_the_laws_and_the_cut_are_those_of_the_config(run_yaml: Path) -> None:
    config = load_run(run_yaml, ["freshness.max_lag=3", "freshness.tokens_per_update=1000", "envs.sort.fraction=0.75", "batch.order=newest", "run.seed=7"])
    assert (laws(config).max_lag, laws(config).credit_tokens, laws(config).fractions) == (3, 4000, {"sort": 0.75})
    assert (cut_request(config).groups_per_update, cut_request(config).order, cut_request(config).seed) == (2, "newest", 7)


def test_a_worker_is_told_its_environment_and_where_its_acknowledgements_go(run_yaml: Path, tmp_path: Path) -> None:
    worker = worker_config(load_run(run_yaml), tmp_path, "sort", "worker-sort-1", "http://buffer", ("http://server",))
    assert (worker.env.kind, worker.acks) == ("sort", tmp_path / "acks" / "worker-sort-1.log")
    with pytest.raises(ConfigError, match="it has sort"):
        worker_config(load_run(run_yaml), tmp_path, "chess", "w", "http://buffer", ("http://server",))


def test_what_says_how_fast_and_how_long_may_change_on_resume(run_yaml: Path) -> None:
    free = ["run.updates=9", "envs.sort.replicas=2", "inference.servers=2", "inference.limits.max_running=3", "eval.samples=2", "weights.checkpoints_kept=4"]
    check_same_run(load_run(run_yaml), load_run(run_yaml, free))


@pytest.mark.parametrize("word", ["run.seed=1", "learner.lr=0.1", "batch.groups_per_update=3", "envs.sort.params={max_digits: 5}", "actor.group_size=5"])
def test_what_makes_a_run_the_run_it_is_may_not(run_yaml: Path, word: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_same_run(load_run(run_yaml), load_run(run_yaml, [word]))
    key = word.partition("=")[0]
    assert str(caught.value).startswith(f"{key}: ") or str(caught.value).startswith(f"{key}.")
    assert "--fresh" in str(caught.value)


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_example_is_a_run(example: Path, run_yaml: Path) -> None:
    assert load_run(example, [f"model.path={run_yaml.parent / 'model'}"]).run.updates > 0
