"""Verbs that ask something of a run afterwards: `verify`, `replay`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.looking import TokenOption, checked_url, directory_of, is_url, token_of
from penstock.cli.runs import DirOption, RunArgument

if TYPE_CHECKING:
    from penstock.buffer.checks import Finding


def register(app: typer.Typer) -> None:
    """Add the verbs of this file."""
    app.command()(verify)
    app.command()(replay)


def verify(
    run: Annotated[str, typer.Argument(help="Name or directory of a run, directory of a buffer, or URL of one.", metavar="RUN|DIR|URL")],
    dir: DirOption = Path("runs"),
    token_file: TokenOption = None,
) -> None:
    """Reconcile what writers were told, what the store and the archive hold and what checkpoints consumed. Exit 1 if a promise is broken."""
    findings = _findings(run, dir, token_file)
    if not findings:
        typer.echo("the buffer has no run: nothing was stored in it yet")
        return
    for name, found in findings.items():
        if len(findings) > 1:
            typer.echo(f"run {name}")
        for finding in found:
            typer.echo(f"{'BROKEN' if finding.broken else 'ok':<8}{finding.promise:<4}{finding.checked}")
            for sentence in finding.broken:
                typer.echo(f"            {sentence}")
    broken = sum(len(finding.broken) for found in findings.values() for finding in found)
    typer.echo("everything is accounted for" if not broken else "1 thing is wrong" if broken == 1 else f"{broken} things are wrong")
    if broken:
        raise typer.Exit(1)


def _findings(asked: str, dir: Path, token_file: Path | None) -> dict[str, tuple[Finding, ...]]:
    """What a check of a run's directory, a buffer's, or a URL finds, by run."""
    if is_url(asked):
        from penstock.lab.verify import verify_url

        return verify_url(checked_url(asked), token=token_of(token_file))
    from penstock.lab.verify import verify as verify_run
    from penstock.lab.verify import verify_buffer

    path = directory_of(asked, dir)
    return verify_buffer(path) if (path / "store.sqlite").is_file() else {path.name: verify_run(path)}


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
