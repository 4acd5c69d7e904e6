"""`init generator`: a generator file to start from, and problems for it."""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from penstock.errors import ConfigError

SUFFIX = "_generator.py"
SHIPPED = "base"
NUM_PROBLEMS = 8


def init_generator(
    name: Annotated[str, typer.Argument(help="Task type: lower-case letters, digits and underscores.")],
    folder: Annotated[Path, typer.Option(help="Where the file is put; `penstock buffer` looks into `generator` by itself.")] = Path("generator"),
    data: Annotated[Path | None, typer.Option(help="Where a few problems to try it with are put; NAME.jsonl if not given.")] = None,
) -> None:
    """Make a generator file that works as it stands: arithmetic, graded by its answers."""
    name = name.removesuffix(SUFFIX)
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,63}", name):
        raise ConfigError(f"the name of a generator must be a lower-case letter and up to 63 lower-case letters, digits and underscores, got {name!r}")
    if name == SHIPPED:
        # Found before the shipped one, it would be what it imports itself.
        raise ConfigError(f"{SHIPPED}{SUFFIX} is what generators import their base from; take another name")
    generator, problems = folder / (name + SUFFIX), data or Path(f"{name}.jsonl")
    if generator.exists():
        raise ConfigError(f"{generator} exists already")
    template = resources.files("penstock.buffer.compat.generators").joinpath("template.py.txt").read_text(encoding="utf-8")
    is_new = not problems.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        generator.write_text(template.replace("NAME", name), encoding="utf-8")
        if is_new:
            problems.write_text("".join(json.dumps(problem) + "\n" for problem in _problems(name)), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {generator} and {problems}: {error.strerror}") from None
    typer.echo(f"{generator}: a generator of task type {name}; how to run it is at its top")
    typer.echo(f"{problems}: problems to try it with" if is_new else f"{problems}: was there already, and is as it was")


def _problems(name: str) -> list[dict[str, str]]:
    pairs = [(3 + 7 * number, 5 + 4 * number) for number in range(NUM_PROBLEMS)]
    return [
        {"instance_id": f"{name}-{number}", "prompt": f"What is {left} + {right}? End with the answer alone in \\boxed{{}}.", "label": str(left + right)}
        for number, (left, right) in enumerate(pairs)
    ]
