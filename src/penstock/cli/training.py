"""Verbs that train: `train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.speaking import speak


def register(app: typer.Typer) -> None:
    """Add the verbs of this file."""
    app.command()(train)


def train(
    config: Annotated[Path, typer.Argument(help="YAML file of the run.", metavar="RUN.YAML")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Settings on top of it.", metavar="KEY.SUB=VALUE")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print processes, budgets and credits, and stop.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over; what was there becomes <name>.previous.")] = False,
) -> None:
    """Train a policy. The same name again resumes; a finished run prints its summary."""
    from penstock.orchestrator.config import load_run
    from penstock.orchestrator.launch import launch
    from penstock.orchestrator.plan import describe
    from penstock.orchestrator.summary import describe_summary

    run = load_run(config, overrides or [])
    if dry_run:
        typer.echo(describe(run))
        return
    speak(plain=True)
    typer.echo(describe_summary(run.run.name, launch(run, fresh=fresh)))
