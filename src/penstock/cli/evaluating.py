"""The verb that evaluates: `eval`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.runs import DirOption, RunArgument
from penstock.cli.speaking import run_until_told, speak
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.orchestrator.rundir import RunDir


def register(app: typer.Typer) -> None:
    """Add the verbs of this file."""
    app.command("eval")(evaluate)


def evaluate(
    run: RunArgument,
    dir: DirOption = Path("runs"),
    version: Annotated[int | None, typer.Option(help="Version of the weights; the newest without it.")] = None,
    env: Annotated[list[str] | None, typer.Option(help="Environment; may be repeated; all without it.")] = None,
    out: Annotated[Path | None, typer.Option(help="File for the result, as JSON.")] = None,
    digest: Annotated[str, typer.Option(hidden=True)] = "",
    weights_dir: Annotated[Path | None, typer.Option(hidden=True)] = None,
    update: Annotated[int | None, typer.Option(hidden=True, help="Emit metrics for this update.")] = None,
    buffer: Annotated[str | None, typer.Option(hidden=True, help="URL of the run's buffer, to store the episodes in.")] = None,
) -> None:
    """Evaluate one version of a run's weights on held-out problems, in an engine of its own."""
    from penstock.orchestrator.rundir import find_run

    run_dir = find_run(run, dir)
    speak()
    run_until_told(_evaluate(run_dir, version, tuple(env or ()), out, digest, weights_dir, update, buffer))


async def _evaluate(
    run_dir: RunDir,
    version: int | None,
    environments: tuple[str, ...],
    out: Path | None,
    digest: str,
    weights_dir: Path | None,
    update: int | None,
    buffer_url: str | None,
) -> None:
    from contextlib import AsyncExitStack

    from penstock.buffer.client import BufferClient
    from penstock.metrics import JsonlSink, Metrics
    from penstock.orchestrator.config import load_run
    from penstock.orchestrator.heldout import describe_evaluated, evaluate_version, write_evaluated

    config = load_run(run_dir.config)
    if version is None or not digest:
        version, digest = _recorded(run_dir, version)
    async with AsyncExitStack() as stack:
        buffer = None if buffer_url is None else await stack.enter_async_context(BufferClient(buffer_url, config.run.name))
        place = weights_dir or run_dir.weights
        found = await evaluate_version(config, version=version, digest=digest, weights_dir=place, environments=environments, buffer=buffer)
    if update is not None:
        metrics = Metrics(JsonlSink(run_dir.metrics))
        metrics.emit(update, *(record for result in found.environments.values() for record in result.records()))
        metrics.close()
    if out is not None:
        write_evaluated(out, found)
    typer.echo(describe_evaluated(found))


def _recorded(run_dir: RunDir, version: int | None) -> tuple[int, str]:
    """Number and digest of a version that the run has recorded and still has the bytes of."""
    from penstock.lab.archive import opened

    with opened(run_dir.path) as archive:
        versions = archive.ledger.versions
        wanted = archive.ledger.newest_version if version is None else version
        there = [number for number, found in versions.items() if (run_dir.weights / f"{found.digest}.safetensors").exists()]
        if wanted not in there:
            raise ConfigError(f"--version: the weights of version {wanted} are not kept; there are versions {', '.join(map(str, there))}")
        return wanted, versions[wanted].digest
