"""Verbs that look at what a buffer holds, on disk or over HTTP: `ledger`, `where`, `export`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from penstock.cli.runs import DirOption
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.lab.sources import Source

SourceArgument = Annotated[str, typer.Argument(help="Name or directory of a run, directory of a buffer, or URL of one.", metavar="RUN|URL")]
NameOption = Annotated[str | None, typer.Option("--run", help="Which run, if the buffer has several.")]
TokenOption = Annotated[Path | None, typer.Option(help="File with the token to send to a URL, or the server's own; otherwise PENSTOCK_TOKEN is sent.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]


def register(app: typer.Typer) -> None:
    """Add the verbs of this file."""
    for verb in (ledger, where, export):
        app.command()(verb)


def ledger(source: SourceArgument, run: NameOption = None, as_json: JsonOption = False, token_file: TokenOption = None, dir: DirOption = Path("runs")) -> None:
    """Show where every group and member that was ever issued is. Exit 1 if they do not add up."""
    from penstock.lab.ledger_view import describe_ledger
    from penstock.wire import write_body

    place = _source(source, dir, token_file)
    ledgers = [place.ledger(name) for name in ((run,) if run is not None else place.runs())]
    if as_json:
        typer.echo(json.dumps([json.loads(write_body(found)) for found in ledgers], indent=2))
    else:
        typer.echo("\n\n".join(map(describe_ledger, ledgers)) or "the buffer has no run: nothing was stored in it yet")
    if any(found.imbalance for found in ledgers):
        raise typer.Exit(1)


def where(
    id: Annotated[str, typer.Argument(help="Id of a group, uid of a rollout, or GROUP#MEMBER.", metavar="ID")],
    run: Annotated[
        str | None, typer.Option("--run", help="Name or directory of the run, or directory of a buffer; with --url, the run's name there. All runs without it.")
    ] = None,
    url: Annotated[str | None, typer.Option(help="URL of a buffer.")] = None,
    as_json: JsonOption = False,
    token_file: TokenOption = None,
    dir: DirOption = Path("runs"),
) -> None:
    """Tell the whole story of a group, a member or a rollout."""
    from penstock.lab.where import describe_story, find_stories
    from penstock.wire import write_body

    if url is not None:
        stories = find_stories([_source(checked_url(url), dir, token_file)], id, run)
    elif run is not None:
        stories = find_stories([_source(run, dir, token_file)], id)
    else:
        stories = find_stories(_all_sources(dir), id)
    if as_json:
        typer.echo(json.dumps([json.loads(write_body(story)) for story in stories], indent=2))
    else:
        typer.echo("\n\n".join(map(describe_story, stories)))


def export(
    source: SourceArgument,
    out: Annotated[Path, typer.Option(help="File to write, .jsonl or .parquet; - prints lines of JSON.")],
    run: NameOption = None,
    environment: Annotated[list[str] | None, typer.Option(help="Only groups of this environment; may be repeated.")] = None,
    state: Annotated[list[str] | None, typer.Option(help="Only groups in this state; may be repeated.")] = None,
    purpose: Annotated[list[str] | None, typer.Option(help="Only groups for this purpose; may be repeated.")] = None,
    status: Annotated[list[str] | None, typer.Option(help="Only rollouts that ended so; may be repeated.")] = None,
    where: Annotated[list[str] | None, typer.Option(help="Only rollouts for which this holds, such as 'reward>=0.5'; may be repeated.")] = None,
    token_file: TokenOption = None,
    dir: DirOption = Path("runs"),
) -> None:
    """Write stored rollouts to a file for other tools."""
    from penstock.lab.export import write_export

    place = _source(source, dir, token_file)
    given = {"environment": environment, "state": state, "purpose": purpose, "status": status, "where": where}
    words = [(parameter, word) for parameter, values in given.items() for word in values or ()]
    lines = place.lines(_only_run(place, run), words)
    if str(out) == "-":
        for line in lines:
            sys.stdout.buffer.write(line + b"\n")
        return
    typer.echo(f"{write_export(lines, out)} rollouts in {out}")


def _only_run(place: Source, run: str | None) -> str:
    if run is not None:
        return run
    names = place.runs()
    if len(names) != 1:
        raise ConfigError(f"--run: say which run is meant; there are {', '.join(names) or 'none'}")
    return names[0]


def _source(word: str, parent: Path, token_file: Path | None) -> Source:
    from penstock.lab.sources import DirectorySource, UrlSource

    if is_url(word):
        return UrlSource(checked_url(word), token=token_of(token_file))
    return DirectorySource(directory_of(word, parent))


def is_url(word: str) -> bool:
    """Whether a word that may name a directory is a URL."""
    return word.startswith(("http://", "https://"))


def checked_url(word: str) -> str:
    """A URL that can be asked. Raises `ConfigError` if it is none."""
    try:
        parts = urlsplit(word)
        is_whole = is_url(word) and parts.hostname is not None and (parts.port is None or parts.port > 0)
    except ValueError:
        is_whole = False
    if not is_whole:
        raise ConfigError(f"{word!r} is not the URL of a buffer; one looks like http://localhost:8889")
    return word


def directory_of(word: str, parent: Path) -> Path:
    """The directory of a run, by its name or its path, or of a buffer. Raises `ConfigError` if there is none."""
    from penstock.orchestrator.rundir import find_run

    path = Path(word)
    if (path / "store.sqlite").is_file():
        return path
    try:
        return find_run(word, parent).path
    except ConfigError:
        if path.is_dir():
            raise ConfigError(f"{word} is neither the directory of a run nor that of a buffer: it has no store.sqlite") from None
        url = f"; a URL begins with http://, as http://{word}" if ":" in word else ""
        raise ConfigError(f"there is no run {word!r} in {parent}/, and no directory of that name{url}") from None


def _all_sources(parent: Path) -> list[Source]:
    from penstock.lab.sources import DirectorySource
    from penstock.orchestrator.rundir import RunDir

    found = sorted(path for path in parent.iterdir() if RunDir(path).is_run) if parent.is_dir() else []
    if not found:
        raise ConfigError(f"there is no run in {parent}/; name one, or the directory of a buffer, with --run, or a buffer's URL with --url")
    return [DirectorySource(path) for path in found if (path / "buffer" / "store.sqlite").is_file()]


def token_of(path: Path | None) -> str | None:
    """The token in a file to send to a server; None without one. The server's own file will do: of its tokens, the one that may do most."""
    if path is None:
        return None
    from penstock.httpd import read_tokens

    return max(read_tokens(path, {}), key=lambda token: len(token.scopes)).value
