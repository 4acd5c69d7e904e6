"""How the demo's model is made: a function of the recipe alone, on one kind of machine and one set of libraries bit for bit."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path

import msgspec
import torch
from rich.console import Console

from penstock.chat import ChatTemplate
from penstock.envs import SortEnvironment, TextWorldEnvironment, tokenized, tokenized_turns
from penstock.envs.sort import sort_demonstrations
from penstock.envs.textworld import textworld_demonstrations
from penstock.errors import ConfigError
from penstock.models.creation import init_model
from penstock.models.loading import load_model
from penstock.models.warmup import Demonstration, WarmUpConfig, warm_up
from penstock.models.weights import model_tensors, sync, weights_digest, write_weights

RECIPE_FILE = "recipe.json"
_LIBRARIES = ("torch", "transformers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What a warmed-up model is made from. `digest` and `libraries` say what came of it, and with what."""

    schema: int = 1
    environment: str = "sort"
    """Whose demonstrations: `sort` or `textworld`, with its default settings."""
    size: str = "nano"
    template: str = "plain"
    seed: int = 3
    """Of the random weights and of the demonstrations."""
    corrupted: float = 0.65
    """Share of demonstrations (of `sort`) or of single actions (of `textworld`) that are wrong."""
    warm_up: WarmUpConfig = field(default_factory=lambda: WarmUpConfig(steps=220))
    threads: int = 1
    """Torch threads. Part of the arithmetic: another number may round differently."""
    digest: str = ""
    """Of the weights that were made; empty before."""
    libraries: Mapping[str, str] = field(default_factory=dict)


RECIPE = Recipe()
"""That of the model that comes with the package. The number of steps is where greedy held-out reward passes between 0.40 and 0.46."""

TEXTWORLD_RECIPE = Recipe(environment="textworld", seed=0, corrupted=0.35, warm_up=WarmUpConfig(steps=250, batch_size=16))
"""A model that brings the thing now and then: held-out reward is about 0.2 sampled and 0.4 greedy. Takes a minute and a half of one core."""

RECIPES: Mapping[str, Recipe] = {recipe.environment: recipe for recipe in (RECIPE, TEXTWORLD_RECIPE)}
"""By environment."""


def make_demo_model(directory: Path, recipe: Recipe = RECIPE, *, console: Console | None = None) -> Recipe:
    """Make `directory` a warmed-up model, with a progress bar on `console`, and return the recipe with its outcome, which is also in `recipe.json`.

    The directory appears whole or not at all. Raises `ConfigError` if it exists. Sets the number of torch threads of this process.
    """
    if directory.exists():
        raise ConfigError(f"{directory} exists; a new model needs a new directory")
    torch.set_num_threads(recipe.threads)
    temporary = directory.with_name(f".{directory.name}.{os.getpid()}.warming")
    try:
        init_model(temporary, size=recipe.size, template=recipe.template, seed=recipe.seed)
        model = load_model(temporary)
        warm_up(model, _demonstrations(temporary, recipe), recipe.warm_up, console=console)
        made = replace(recipe, digest=weights_digest(model_tensors(model)), libraries={name: version(name) for name in _LIBRARIES})
        write_weights(temporary / "model.safetensors", model_tensors(model))
        (temporary / RECIPE_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(made), indent=1) + b"\n")
        temporary.replace(directory)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    sync(directory.parent)
    return made


def read_recipe(directory: Path) -> Recipe:
    """The recipe of a model that `make_demo_model` made."""
    return msgspec.json.decode((directory / RECIPE_FILE).read_bytes(), type=Recipe)


def _demonstrations(directory: Path, recipe: Recipe) -> Iterator[Demonstration]:
    template = ChatTemplate.load(directory)
    if recipe.environment == "sort":
        pairs = sort_demonstrations(SortEnvironment(), seed=recipe.seed, corrupted=recipe.corrupted)
        return (Demonstration(prompt=prompt, reply=reply) for prompt, reply in tokenized(template, pairs))
    if recipe.environment == "textworld":
        episodes = (steps for _, steps in textworld_demonstrations(TextWorldEnvironment(), seed=recipe.seed, corrupted=recipe.corrupted))
        return (Demonstration(prompt=first[0], reply=first[1], later_turns=tuple(later)) for first, *later in tokenized_turns(template, episodes))
    raise ConfigError(f"there are no demonstrations of {recipe.environment!r}; there are some of {', '.join(RECIPES)}")
