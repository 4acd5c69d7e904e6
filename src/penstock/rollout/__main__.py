"""`python -m penstock.rollout`: one worker process, without the command line of penstock."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

from penstock.config import load
from penstock.errors import ConfigError, PenstockError
from penstock.rollout.config import ActorConfig, EnvConfig, WorkerConfig
from penstock.rollout.worker import run_worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Sections:
    """The sections of a run's config that a worker reads."""

    envs: Mapping[str, EnvConfig]
    actor: ActorConfig = field(default_factory=ActorConfig)


def main(arguments: list[str] | None = None) -> int:
    """Work until told to stop. 2 for a wrong setting, 1 for anything else that ends it, each with one line that says what."""
    parser = argparse.ArgumentParser(prog="python -m penstock.rollout", description="Play episodes of one environment.")
    parser.add_argument("--buffer", required=True, help="URL of the buffer")
    parser.add_argument("--run", required=True)
    parser.add_argument("--server", action="append", required=True, help="URL of an inference server; may be repeated")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--env", required=True, help="name of an environment in the config")
    parser.add_argument("--config", type=Path, required=True, help="YAML with the sections envs and actor")
    parser.add_argument("--name", default="worker")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--acks", type=Path)
    parser.add_argument("--metrics", type=Path)
    parser.add_argument("--token-file", type=Path)
    words = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        sections = load(words.config, [], Sections)
        if words.env not in sections.envs:
            raise ConfigError(f"envs.{words.env}: there is no such environment; there are {', '.join(sections.envs)}")
        config = WorkerConfig(
            buffer_url=words.buffer,
            run=words.run,
            servers=tuple(words.server),
            model=words.model,
            environment=words.env,
            env=sections.envs[words.env],
            actor=sections.actor,
            name=words.name,
            acks=words.acks,
            metrics=words.metrics,
            seed=words.seed,
            token=words.token_file.read_text().strip() if words.token_file else None,
        )
        uvloop.run(run_worker(config))
    except PenstockError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2 if isinstance(error, ConfigError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
