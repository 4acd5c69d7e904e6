"""All verbs, and what becomes of an error: one line and an exit code."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from penstock import __version__
from penstock.cli import checking, demo, evaluating, looking, making, parts, questions, runs, training, wondering
from penstock.errors import ConfigError, InvariantError, MismatchError, PenstockError, ReplayError, WeightsError, first_cause
from penstock.process.restarts import EXIT_CONFIG, EXIT_FINAL

_FINAL = (InvariantError, MismatchError, ReplayError, WeightsError)
"""What a part finds again when it is started again."""

app = typer.Typer(
    name="penstock",
    help="Asynchronous reinforcement-learning post-training of LLM agents that loses, repeats and corrupts nothing.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _tell_version(asked: bool) -> None:
    if asked:
        typer.echo(f"penstock {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", help="Say which penstock this is, and end.", callback=_tell_version, is_eager=True)] = False,
) -> None:
    """What holds for every verb."""


for group in (demo, training, evaluating, runs, questions, wondering, looking, checking, parts, making):
    group.register(app)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the verb that `arguments` (or the process's own) name, and exit."""
    _find_own_modules()
    try:
        app(args=None if arguments is None else list(arguments))
    except (PenstockError, ExceptionGroup) as error:
        cause = first_cause(error)
        if not isinstance(cause, PenstockError):
            raise
        sys.stderr.write(f"penstock: {cause}\n")
        sys.exit(exit_code(cause))
    sys.exit(0)


def _find_own_modules() -> None:
    """Let `module:function` name a file in the directory that one works in; the program itself is started from elsewhere. Last, so that it replaces nothing."""
    if sys.flags.safe_path:
        return
    with contextlib.suppress(OSError):  # the directory may be gone
        here = str(Path.cwd())
        if here not in sys.path:
            sys.path.append(here)


def exit_code(error: PenstockError) -> int:
    """2 for a wrong setting, 3 for what starting again does not mend, 128 + n after signal n, 1 for the rest."""
    if isinstance(error, ConfigError):
        return EXIT_CONFIG
    if isinstance(error, _FINAL):
        return EXIT_FINAL
    number = getattr(error, "number", None)
    return 128 + number if isinstance(number, int) else 1
