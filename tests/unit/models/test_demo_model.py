from __future__ import annotations

from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.models import WarmUpConfig, model_tensors, weights_digest
from penstock.models.demo import RECIPE, RECIPES, TEXTWORLD_RECIPE, make_demo_model, read_recipe
from penstock.models.loading import load_model

SHIPPED = Path(str(resources.files("penstock"))) / "models" / "demo" / "model"
SHORT = replace(RECIPE, warm_up=WarmUpConfig(steps=2, batch_size=4))


def test_the_model_that_comes_along_is_the_one_that_its_recipe_names() -> None:
    recipe = read_recipe(SHIPPED)
    assert weights_digest(model_tensors(load_model(SHIPPED))) == recipe.digest
    assert replace(recipe, digest="", libraries={}) == RECIPE


def test_the_model_that_comes_along_is_small() -> None:
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) <= 3_000_000


def test_a_recipe_gives_the_same_model_every_time(tmp_path: Path) -> None:
    made = [make_demo_model(tmp_path / name, SHORT) for name in ("a", "b")]
    assert made[0].digest == made[1].digest
    assert read_recipe(tmp_path / "a") == made[0]
    assert weights_digest(model_tensors(load_model(tmp_path / "a"))) == made[0].digest
    assert set(made[0].libraries) == {"torch", "transformers"}


def test_another_seed_gives_another_model(tmp_path: Path) -> None:
    assert make_demo_model(tmp_path / "a", SHORT).digest != make_demo_model(tmp_path / "b", replace(SHORT, seed=4)).digest


def test_a_directory_that_exists_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="exists"):
        make_demo_model(tmp_path, SHORT)
    assert list(tmp_path.iterdir()) == []


def test_a_model_can_be_warmed_up_on_the_text_world(tmp_path: Path) -> None:
    assert RECIPES["textworld"] is TEXTWORLD_RECIPE
    made = make_demo_model(tmp_path / "a", replace(TEXTWORLD_RECIPE, warm_up=WarmUpConfig(steps=2, batch_size=2)))
    assert (made.environment, read_recipe(tmp_path / "a")) == ("textworld", made)


def test_an_environment_without_demonstrations_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="guess"):
        make_demo_model(tmp_path / "a", replace(SHORT, environment="guess"))
    assert list(tmp_path.iterdir()) == []
