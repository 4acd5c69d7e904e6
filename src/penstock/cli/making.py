"""Verbs that make something to start from: `init model`, `init generator`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.making_generators import init_generator
from penstock.errors import ConfigError


def register(app: typer.Typer) -> None:
    """Add the verbs of this file."""
    init = typer.Typer(help="Make something to start from.", no_args_is_help=True)
    init.command("model")(init_model)
    init.command("generator")(init_generator)
    app.add_typer(init, name="init")


def init_model(
    directory: Annotated[Path, typer.Argument(help="Directory to make.")],
    size: Annotated[str, typer.Option(help="nano, tiny, small or medium.")] = "nano",
    template: Annotated[str, typer.Option(help="Built-in chat template.")] = "chatml",
    seed: Annotated[int, typer.Option(help="Of the random weights.")] = 0,
    demo: Annotated[
        bool, typer.Option("--demo", help="The warmed-up model of `penstock demo`, made again by its recipe; the other options do not matter.")
    ] = False,
    warm_up: Annotated[str, typer.Option(help="Warm it up on demonstrations of sort or textworld, by a recipe; the other options do not matter.")] = "",
) -> None:
    """Make a small model with random weights and a byte-level tokenizer, in Hugging Face's format."""
    if demo or warm_up:
        _make_warm_model(directory, warm_up or "sort")
        return
    from penstock.models import init_model as make

    make(directory, size=size, template=template, seed=seed)
    typer.echo(f"{directory}: a {size} model with random weights")


def _make_warm_model(directory: Path, environment: str) -> None:
    from rich.console import Console

    from penstock.models.demo import RECIPES, make_demo_model

    if environment not in RECIPES:
        raise ConfigError(f"--warm-up: there are no demonstrations of {environment!r}; there are some of {', '.join(RECIPES)}")
    directory.parent.mkdir(parents=True, exist_ok=True)
    made = make_demo_model(directory, RECIPES[environment], console=Console(stderr=True))
    typer.echo(f"{directory}: a {made.size} model, warmed up in {made.warm_up.steps} steps, weights {made.digest}")
