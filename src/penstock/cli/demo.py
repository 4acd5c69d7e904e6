"""The verb that shows everything at once: `demo`."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from penstock.process.child import start_child


def register(app: typer.Typer) -> None:
    """Add the verbs of this file."""
    app.command()(demo)


def demo(
    overrides: Annotated[list[str] | None, typer.Argument(help="Settings on top of the demo's own.", metavar="KEY.SUB=VALUE")] = None,
    from_scratch: Annotated[bool, typer.Option("--from-scratch", help="Warm up the model too, instead of taking the one that comes along.")] = False,
    kill: Annotated[bool, typer.Option("--kill/--no-kill", help="Kill the learner half way.")] = True,
    dir: Annotated[Path, typer.Option("--dir", help="Where the run's directory is made.")] = Path("runs"),
) -> None:
    """Train a small model to sort digits with the whole asynchronous loop, kill its learner half way, and show that nothing was lost."""
    data = Path(str(resources.files("penstock"))) / "models" / "demo"
    model = _warmed_up(dir, data / "model") if from_scratch else data / "model"
    # Later words win, so the run's own place and name come last: what is shown is where it was told to be.
    words = [f"model.path={model}", *(overrides or []), f"run.dir={dir.resolve()}"]
    sys.exit(asyncio.run(_show(data / "run.yaml", words, kill=kill)))


async def _show(config: Path, words: list[str], *, kill: bool) -> int:
    """Start the run, and only then load what it takes to show it: people wait for the first."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / "train.log"
        child = await start_child([sys.executable, "-m", "penstock", "train", str(config), *words, "--fresh"], log=log, environment={})
        try:
            from penstock.cli._demo_run import DemoRun

            return await DemoRun(config, words, kill=kill, started=started).show(child, log)
        finally:
            child.kill()


def _warmed_up(dir: Path, shipped: Path) -> Path:
    """Make the model again, and say whether it is the one that comes along."""
    import shutil

    from rich.console import Console

    from penstock.errors import ConfigError
    from penstock.models.demo import make_demo_model, read_recipe

    directory = dir.resolve() / "demo-model"
    if directory.exists():
        if not (directory / "recipe.json").is_file():
            raise ConfigError(f"{directory} is in the way and is not a model that this made")
        shutil.rmtree(directory)
    directory.parent.mkdir(parents=True, exist_ok=True)
    made = make_demo_model(directory, console=Console(stderr=True))
    wanted = read_recipe(shipped)
    same = (
        "the one that comes along, bit for bit"
        if made.digest == wanted.digest
        else f"not quite the one that comes along, which was made with {wanted.libraries}"
    )
    typer.echo(f"warmed up in {directory}: weights {made.digest}, {same}")
    return directory
