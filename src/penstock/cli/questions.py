"""Verbs that ask something of a run afterwards: `verify`, `replay`."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from penstock.cli.runs import DirOption, RunArgument


def register(app: typer.Typer) -> None:
    """Add the verbs of this file."""
    app.command()(verify)
    app.command()(replay)


def verify(run: RunArgument, dir: DirOption = Path("runs")) -> None:
    """Reconcile what writers were told, what the store holds and what checkpoints consumed. Exit 1 if a promise is broken."""
    from penstock.orchestrator.rundir import find_run

    run_dir = find_run(run, dir)
    from penstock.lab.verify import verify as check

    findings = check(run_dir.path)
    for finding in findings:
        typer.echo(f"{'BROKEN' if finding.broken else 'ok':<8}{finding.promise:<4}{finding.checked}")
        for sentence in finding.broken:
            typer.echo(f"            {sentence}")
    broken = sum(len(finding.broken) for finding in findings)
    typer.echo(f"{broken} things are wrong" if broken else "everything is accounted for")
    if broken:
        raise typer.Exit(1)


def replay(run: RunArgument, dir: DirOption = Path("runs")) -> None:
    """Execute every recorded plan again, from the archive alone, and compare the weights bit for bit."""
    from penstock.orchestrator.rundir import find_run

    run_dir = find_run(run, dir)
    from penstock.lab.replay import replay as execute
    from penstock.orchestrator.config import load_run

    config = load_run(run_dir.config)

    def progress(done: int, total: int) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\rreplaying update {done} of {total}" + "\n" * (done == total))
            sys.stderr.flush()

    done = execute(run_dir.path, config.model.path, config.algorithm, config.learner, tokens_per_row=config.batch.tokens_per_row, progress=progress)
    typer.echo(f"{done.updates} updates from update_{done.first_update} replayed; the weights are the run's own, bit for bit: {done.digest}")
