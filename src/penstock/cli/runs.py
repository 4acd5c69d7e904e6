"""Verbs about runs that are under way: `status`, `logs`, `stop`."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from penstock.errors import ConfigError, ProcessError

STOP_SECONDS = 15.0
"""A run drains within 10 s; after this something is wrong with it."""

RunArgument = Annotated[str, typer.Argument(help="Name of a run, or its directory.", metavar="RUN")]
DirOption = Annotated[Path, typer.Option("--dir", help="Where runs are.")]


def register(app: typer.Typer) -> None:
    """Add the verbs of this file."""
    for verb in (status, logs, stop):
        app.command()(verb)


def status(run: RunArgument, dir: DirOption = Path("runs")) -> None:
    """Show how a run stands, what its processes do, and its slowest episodes."""
    from penstock.orchestrator.rundir import find_run

    run_dir = find_run(run, dir)
    from penstock.orchestrator.state import describe_state, read_state
    from penstock.rollout.running import describe_slowest, read_views

    state = read_state(run_dir.state)
    if state is None:
        raise ConfigError(f"run {run} has never been started")
    is_held, now = run_dir.is_held(), time.time()
    typer.echo(describe_state(state, is_held=is_held, now=now))
    slowest = describe_slowest(read_views(run_dir.workers, now), now) if is_held else ""
    if slowest:
        typer.echo(slowest)


def logs(
    run: RunArgument,
    part: Annotated[str | None, typer.Argument(help="Part whose log to show, such as learner; all of them without it.")] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", help="How many of the last lines.", min=0)] = 20,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run ends.")] = False,
    dir: DirOption = Path("runs"),
) -> None:
    """Show what the parts of a run have said."""
    from penstock.orchestrator.rundir import find_run
    from penstock.process import logs as files

    run_dir = find_run(run, dir)
    found = sorted(path.stem for path in run_dir.logs.glob("*.log"))
    wanted = found if part is None else [part]
    if not set(wanted) <= set(found):
        raise ConfigError(f"run {run} has no log of {part}; there are {', '.join(found) or 'none'}")
    if follow and part is None:
        raise ConfigError("one log is followed at a time: name a part")
    for name in wanted:
        path = run_dir.logs / f"{name}.log"
        if len(wanted) > 1:
            typer.echo(f"==> {name}")
        for line in files.last_lines(path, lines):
            typer.echo(line)
        if follow:
            for piece in files.follow(path, lambda: not run_dir.is_held()):
                sys.stdout.write(piece)
                sys.stdout.flush()


def stop(run: RunArgument, dir: DirOption = Path("runs")) -> None:
    """Let a run drain and end. Starting it again resumes."""
    from penstock.orchestrator.rundir import find_run

    run_dir = find_run(run, dir)
    from penstock.orchestrator.state import read_state

    state = read_state(run_dir.state)
    if state is None or not run_dir.is_held():
        typer.echo(f"run {run_dir.path.name} is not running")
        return
    state.orchestrator.signal(signal.SIGTERM)
    deadline = time.monotonic() + STOP_SECONDS
    while run_dir.is_held():
        if time.monotonic() > deadline:
            raise ProcessError(f"run {run_dir.path.name} (pid {state.orchestrator.pid}) has not ended within {STOP_SECONDS:g} s")
        time.sleep(0.05)
    typer.echo(f"run {run_dir.path.name} has stopped")
