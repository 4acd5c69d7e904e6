"""A verb that asks what other settings would have made of a run: `whatif`."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.looking import JsonOption
from penstock.cli.runs import DirOption, RunArgument
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.lab.whatif import WhatIf
    from penstock.orchestrator.config import RunConfig

_ASKED = ("learner.reference", "learner.temperature")
"""What the numbers depend on beside `algorithm`."""


def register(app: typer.Typer) -> None:
    """Add the verbs of this file."""
    app.command()(whatif)


def whatif(
    run: RunArgument,
    changes: Annotated[list[str] | None, typer.Argument(help="Settings to change, as for `train`: those of algorithm.", metavar="KEY.SUB=VALUE")] = None,
    updates: Annotated[str | None, typer.Option(help="Updates whose rollouts to look at; the last 10 without it.", metavar="FIRST-LAST")] = None,
    checkpoint: Annotated[
        int | None, typer.Option(help="Loss statistics under the weights of the checkpoint of this update; under the stored logprobs without it.", metavar="N")
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="Draw the advantages into this file.", metavar="FILE.html|FILE.svg")] = None,
    as_json: JsonOption = False,
    dir: DirOption = Path("runs"),
) -> None:
    """Recompute filters, advantages and loss over a run's stored rollouts under other settings, side by side. Samples nothing, changes nothing."""
    from penstock.orchestrator.rundir import find_run

    run_dir = find_run(run, dir)
    if not changes:
        raise ConfigError("name a setting to change, such as algorithm.adv_estimator=rloo")
    if picture is not None and (picture.suffix not in (".html", ".svg") or not picture.parent.is_dir()):
        raise ConfigError(f"--picture must be a .html or .svg file in a directory that exists, got {picture}")
    wanted = _range(updates)
    from penstock.lab.whatif import Settings
    from penstock.lab.whatif import whatif as compute
    from penstock.lab.whatif_table import describe_whatif
    from penstock.wire import write_body

    as_run, changed, changes = _configs(run_dir.config, changes, needs_model=checkpoint is not None)
    found = compute(
        run_dir.path,
        as_run.model.path,
        Settings(algorithm=as_run.algorithm, learner=as_run.learner),
        Settings(algorithm=changed.algorithm, learner=changed.learner),
        changes=changes,
        updates=wanted,
        checkpoint=checkpoint,
        progress=_progress,
    )
    text = describe_whatif(found)
    if picture is not None:
        _draw(picture, found, text)
    typer.echo(json.dumps(json.loads(write_body(found)), indent=2) if as_json else text)


def _range(words: str | None) -> tuple[int, int] | None:
    if words is None:
        return None
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", words)
    if match is None or int(match[2] or match[1]) < int(match[1]):
        raise ConfigError(f"--updates must look like 20-29 or 20, got {words!r}")
    return int(match[1]), int(match[2] or match[1])


def _configs(path: Path, changes: list[str], *, needs_model: bool) -> tuple[RunConfig, RunConfig, list[str]]:
    """The run's config, the changed one, and all that was changed. What no model is needed for works where the model is gone."""
    from penstock.config import load
    from penstock.orchestrator.config import RunConfig, load_run

    def loaded(words: list[str]) -> RunConfig:
        return load_run(path, words) if needs_model else load(path, words, RunConfig)

    as_run = loaded([])
    words = [*_left_behind(as_run, changes), *changes]
    changed = loaded(words)
    for word in changes:
        key = word.partition("=")[0]
        if key.partition(".")[0] != "algorithm" and key not in _ASKED:
            raise ConfigError(f"{key} changes nothing about rollouts that are stored; algorithm.* does, and {' and '.join(_ASKED)} for the loss")
    return as_run, changed, words


def _left_behind(as_run: RunConfig, changes: list[str]) -> list[str]:
    """What a change to another estimator or loss leaves behind: options of the one that the run had are none of the other's."""
    algorithm, given = as_run.algorithm, dict(word.partition("=")[::2] for word in changes)
    owners = (
        ("algorithm.adv_estimator", algorithm.adv_estimator, "algorithm.options", algorithm.options),
        ("algorithm.loss.name", algorithm.loss.name, "algorithm.loss.options", algorithm.loss.options),
    )
    return [f"{key}={{}}" for name_key, name, key, options in owners if options and given.get(name_key, name).strip(" '\"") != name and key not in given]


def _progress(done: int, total: int) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\rlooking at update {done} of {total}" + "\n" * (done == total))
        sys.stderr.flush()


def _draw(path: Path, found: WhatIf, text: str) -> None:
    from penstock.dashboard.histograms import Pair, histogram_page, histograms

    pairs = [
        Pair(
            title=one.environment or "everything",
            names=("as run", "changed"),
            x_label="advantage of a token",
            edges=one.histogram.edges,
            counts=(one.histogram.as_run, one.histogram.changed),
        )
        for one in found.comparisons
        if one.histogram is not None
    ]
    if not pairs:
        raise ConfigError("no token carries loss under either setting: there is nothing to draw")
    drawn = histograms(pairs) if path.suffix == ".svg" else histogram_page(f"What if: run {found.run}, {' '.join(found.changes)}", text, pairs)
    try:
        path.write_text(drawn, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--picture {path} cannot be written: {error.strerror}") from None
