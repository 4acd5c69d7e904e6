"""Verbs that are one process of a run each: `buffer`, `serve`, `worker`, `learner`. The orchestrator starts them; a person may, too."""

from __future__ import annotations

import importlib
import json
import os
import secrets
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from penstock.cli.gateway import gateway
from penstock.cli.speaking import run_until_told, speak
from penstock.errors import ConfigError

HostOption = Annotated[str, typer.Option(help="Address to listen on; anything but loopback needs a token.")]
TokenOption = Annotated[
    Path | None, typer.Option(help="File with tokens that clients must send, one a line: VALUE, or scope,scope=VALUE. Also: PENSTOCK_TOKENS, PENSTOCK_TOKEN.")
]
PortFileOption = Annotated[Path | None, typer.Option(help="File that gets the port once connections are taken.")]
RunDirArgument = Annotated[Path, typer.Argument(help="Directory of a run, with its config.yaml.", metavar="RUN_DIR")]
BufferOption = Annotated[str, typer.Option("--buffer", help="URL of the buffer.")]
ServersOption = Annotated[list[str], typer.Option("--server", help="URL of an inference server; may be repeated.")]


def register(app: typer.Typer) -> None:
    """Add the verbs of this file."""
    for verb in (serve, buffer, worker, gateway):
        app.command()(verb)
    for hidden in (learner, spare):
        app.command(hidden=True)(hidden)


def buffer(
    dir: Annotated[Path, typer.Option("--dir", help="Where the store is; made if it does not exist.")],
    port: Annotated[int, typer.Option(help="0 takes a free one.")] = 8889,
    host: HostOption = "127.0.0.1",
    token_file: TokenOption = None,
    port_file: PortFileOption = None,
    max_bytes: Annotated[int | None, typer.Option(help="Size of the store above which writes are refused.")] = None,
    metrics: Annotated[Path | None, typer.Option(help="File for the metrics of each batch; DIR/metrics/<run>.jsonl without it.")] = None,
    archive: Annotated[bool, typer.Option("--archive/--no-archive", help="Move ended groups to Parquet files (needs pyarrow).")] = True,
    archive_dir: Annotated[Path | None, typer.Option(help="Where those go; DIR/archive without it.")] = None,
    archive_after_seconds: Annotated[float | None, typer.Option(help="How long a group stays after it has ended.  [60]")] = None,
    archive_rollouts_per_file: Annotated[int | None, typer.Option(help="Rollouts in a file.  [2048]")] = None,
    archive_most_wait_seconds: Annotated[float | None, typer.Option(help="A smaller file is written after this long.  [900]")] = None,
    archive_every_seconds: Annotated[float | None, typer.Option(help="How often to look for some.  [5]")] = None,
    archive_keep_seconds: Annotated[float | None, typer.Option(help="Delete files whose groups all ended longer ago.")] = None,
    archive_keep_bytes: Annotated[int | None, typer.Option(help="Delete the oldest files of a run when all are bigger together.")] = None,
    run: Annotated[str | None, typer.Option(help="Run of items that come by the compatible routes.  [default]")] = None,
    task_type: Annotated[str | None, typer.Option(help="Environment of such items.  [default]")] = None,
    group_size: Annotated[int | None, typer.Option(help="Items of one group.  [8]")] = None,
    min_valid_group_size_ratio: Annotated[float | None, typer.Option(help="Share of its items that finishes a group.  [1.0]")] = None,
    min_valid_item_size_ratio: Annotated[float | None, typer.Option(help="Share of a group that must be left after filtering.  [0.7]")] = None,
    group_timeout_seconds: Annotated[float | None, typer.Option(help="A group without a new item for so long is finished too.  [300]")] = None,
    min_timeout_group_size_ratio: Annotated[float | None, typer.Option(help="Share of its items that such a group needs.  [0.7]")] = None,
    max_buffer_size: Annotated[int | None, typer.Option(help="Items that may wait to be read.  [1000000000]")] = None,
    max_buffer_bytes: Annotated[int | None, typer.Option(help="Bytes that may wait to be read.")] = None,
    cache_bytes: Annotated[int | None, typer.Option(help="Memory for items that wait to be read; others are read from disk.  [201326592]")] = None,
    hold_seconds: Annotated[float | None, typer.Option(help="How long a write waits while the buffer is full, before it is refused.  [60]")] = None,
    generators: Annotated[list[Path] | None, typer.Option(help="Folder with *_generator.py files, beside ./generator; may be repeated.")] = None,
    data_root: Annotated[Path | None, typer.Option(help="Where input files of generators must lie; the working directory without it.")] = None,
) -> None:
    """Serve a durable rollout buffer: the native API under /v1, and the routes of older clients (/buffer/write, /get_rollout_data, /start_rollout, ...)."""
    from penstock.buffer.archive.config import ArchiveConfig
    from penstock.buffer.compat.config import CompatConfig
    from penstock.buffer.config import BufferConfig
    from penstock.buffer.serving import serve_buffer
    from penstock.httpd import Access, read_tokens

    speak()
    given = {
        "after_seconds": archive_after_seconds,
        "rollouts_per_file": archive_rollouts_per_file,
        "most_wait_seconds": archive_most_wait_seconds,
        "every_seconds": archive_every_seconds,
        "keep_seconds": archive_keep_seconds,
        "keep_bytes": archive_keep_bytes,
    }
    compat = {
        "run": run,
        "task_type": task_type,
        "group_size": group_size,
        "min_valid_group_size_ratio": min_valid_group_size_ratio,
        "min_valid_item_size_ratio": min_valid_item_size_ratio,
        "group_timeout_seconds": group_timeout_seconds,
        "min_timeout_group_size_ratio": min_timeout_group_size_ratio,
        "max_buffer_size": max_buffer_size,
        "max_buffer_bytes": max_buffer_bytes,
        "cache_bytes": cache_bytes,
        "hold_seconds": hold_seconds,
    }
    config = BufferConfig(
        directory=dir,
        port=port,
        access=Access(host=host, tokens=read_tokens(token_file, os.environ)),
        port_file=port_file,
        max_bytes=max_bytes,
        metrics=metrics,
        archive=ArchiveConfig(enabled=archive, **{name: value for name, value in given.items() if value is not None}),  # type: ignore[arg-type]
        archive_directory=archive_dir,
        compat=CompatConfig(**{name: value for name, value in compat.items() if value is not None}),  # type: ignore[arg-type]
        generators=tuple(generators or ()),
        data_root=data_root or Path.cwd(),
    )
    serve_buffer(config)


def serve(
    model: Annotated[Path, typer.Option(help="Hugging Face directory of a causal LM.")],
    port: Annotated[int, typer.Option(help="0 takes a free one.")] = 8000,
    host: HostOption = "127.0.0.1",
    token_file: TokenOption = None,
    port_file: PortFileOption = None,
    weights_dir: Annotated[Path | None, typer.Option(help="Where weights lie as <digest>.safetensors; without it none can be pushed.")] = None,
    buffer: Annotated[str, typer.Option(help="URL of a buffer: serve the newest weights of --run.")] = "",
    run: Annotated[str, typer.Option(help="Run whose weights to serve.")] = "",
    digest: Annotated[str, typer.Option(help="Weights in --weights-dir to start with; those of --model without it.")] = "",
    version: Annotated[int, typer.Option(help="Version that the weights to start with are called.")] = 0,
    policy: Annotated[str, typer.Option(help="Name under which the model samples.")] = "policy",
    threads: Annotated[int, typer.Option(help="Torch threads.")] = 1,
    on_swap: Annotated[Literal["recompute", "keep"], typer.Option(help="Caches of replies under way when weights change.")] = "recompute",
    max_running: Annotated[int | None, typer.Option(help="Replies that are computed at once.")] = None,
    max_queued: Annotated[int | None, typer.Option(help="Requests that may wait.")] = None,
    kv_tokens: Annotated[int | None, typer.Option(help="Tokens that running replies may keep in the cache.")] = None,
    prefix_tokens: Annotated[int | None, typer.Option(help="Tokens of prompts kept for later requests.")] = None,
    prefill_tokens: Annotated[int | None, typer.Option(help="Prompt tokens computed at once.")] = None,
    context_tokens: Annotated[int | None, typer.Option(help="Longest prompt with its reply.")] = None,
) -> None:
    """Serve a model with OpenAI's API."""
    from penstock.httpd import Access, read_tokens
    from penstock.inference.config import InferenceConfig
    from penstock.inference.limits import EngineLimits

    speak()
    if not (model / "config.json").is_file():
        raise ConfigError(f"--model: {model} is not a model directory (it has no config.json)")
    given = {
        "max_running": max_running,
        "max_queued": max_queued,
        "kv_tokens": kv_tokens,
        "prefix_tokens": prefix_tokens,
        "prefill_tokens": prefill_tokens,
        "context_tokens": context_tokens,
    }
    limits = EngineLimits(**{name: value for name, value in given.items() if value is not None})
    config = InferenceConfig(
        model=model,
        weights_dir=weights_dir,
        policy=policy,
        version=version,
        digest=digest,
        buffer_url=buffer,
        run=run,
        on_swap=on_swap,
        access=Access(host=host, tokens=read_tokens(token_file, os.environ)),
        port=port,
        port_file=port_file,
        threads=threads,
        limits=limits,
    )
    from penstock.inference.server import serve as serve_model

    serve_model(config)


def worker(
    run: Annotated[str, typer.Argument(help="Name of a run, or its directory.", metavar="RUN")],
    env: Annotated[list[str], typer.Option(help="Name of an environment in the run; may be repeated: they then share this process.")],
    buffer: Annotated[str, typer.Option(help="URL of the buffer; that of the run, if it is running here.")] = "",
    server: Annotated[list[str] | None, typer.Option(help="URL of an inference server; may be repeated. Those of the run, if it is running here.")] = None,
    name: Annotated[str, typer.Option(help="Names the worker and its file of acknowledgements; made up without it.")] = "",
    dir: Annotated[Path, typer.Option("--dir", help="Where runs are.")] = Path("runs"),
) -> None:
    """Play episodes of a run: beside its own workers, from now until this process is told to stop."""
    import uvloop

    from penstock.orchestrator.config import load_run
    from penstock.orchestrator.parts import worker_config
    from penstock.orchestrator.rundir import RunDir, find_run
    from penstock.process.garbage import collect_seldom
    from penstock.rollout.worker import run_worker

    speak()
    # On another machine there may be no more of a run than its config.
    run_dir = RunDir(Path(run)) if buffer and server and (Path(run) / "config.yaml").is_file() else find_run(run, dir)
    if not buffer or not server:
        from penstock.orchestrator.state import served_at

        found_buffer, found_servers = served_at(run_dir)
        buffer, server = buffer or found_buffer, server or list(found_servers)
    name = name or f"worker-{secrets.token_hex(4)}"
    settings = load_run(run_dir.config)
    configs = [worker_config(settings, run_dir.path, each, name if len(env) == 1 else f"{name}-{each}", buffer, tuple(server)) for each in env]
    agents = None
    if any(config.env.agent is not None for config in configs):
        # Imported only then: a gateway comes with it.
        from penstock.orchestrator.agents import worker_agents

        agents = worker_agents
    collect_seldom()
    run_until_told(run_worker(*configs, agents=agents), loop_factory=uvloop.new_event_loop)


def learner(
    run_dir: RunDirArgument,
    buffer: BufferOption,
    server: ServersOption,
    owner: Annotated[str, typer.Option(help="Names this life.")] = "",
    replaces: Annotated[str | None, typer.Option(help="The life before, if it is known to be dead.")] = None,
) -> None:
    """Train until the run has all its updates."""
    from penstock.learner.process import run_learner
    from penstock.orchestrator.config import load_run
    from penstock.orchestrator.parts import learner_config

    speak()
    config = load_run(run_dir / "config.yaml")
    run_until_told(run_learner(learner_config(config, run_dir, buffer, tuple(server), owner=owner, replaces=replaces)))


def spare(
    modules: Annotated[list[str], typer.Argument(help="What to import while waiting.")],
    model: Annotated[Path | None, typer.Option(help="Model to load once: most of the time goes into what its first loading imports.")] = None,
) -> None:
    """Load what takes long, then wait for the real arguments: one line of JSON on stdin."""
    from penstock.cli.main import main

    for module in modules:
        importlib.import_module(module)
    if model is not None:
        from penstock.models import load_model

        load_model(model)
    line = sys.stdin.readline()
    # Nothing more to come means that nobody needs a spare any more.
    if line:
        main(json.loads(line))
