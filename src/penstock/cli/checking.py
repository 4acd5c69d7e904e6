"""Verbs about algorithms: `check algorithm`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]


def register(app: typer.Typer) -> None:
    """Add the verbs of this file."""
    check = typer.Typer(help="Try something before it is trained with.", no_args_is_help=True)
    check.callback()(_check)
    check.command("algorithm")(check_algorithm)
    app.add_typer(check, name="check")


def _check() -> None:
    """Try something before it is trained with."""


def check_algorithm(
    name: Annotated[str, typer.Argument(help="An estimator or a loss: built in, an entry point, or module:function.", metavar="NAME")],
    settings: Annotated[
        list[str] | None, typer.Argument(help="Options of the estimator, or keys of algorithm.loss, as key=value.", metavar="[KEY=VALUE]...")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Hold an estimator or a loss to what training takes for granted, and show the smallest example of what fails. Exit 1 if something does."""
    from penstock.lab.check import check_algorithm as tried
    from penstock.lab.check import describe_check
    from penstock.wire import write_body

    report = tried(name, settings or ())
    typer.echo(json.dumps(json.loads(write_body(report)), indent=2) if as_json else describe_check(report))
    if report.failed:
        raise typer.Exit(1)
