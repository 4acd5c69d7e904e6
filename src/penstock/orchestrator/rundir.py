"""The directory of a run: what is where, who holds it, and how it is started over."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import ConfigError, ConflictError


@dataclass(frozen=True, slots=True)
class RunDir:
    """Places in a run's directory."""

    path: Path

    @property
    def config(self) -> Path:
        """The resolved config, as YAML."""
        return self.path / "config.yaml"

    @property
    def logs(self) -> Path:
        """`<part>.log`: what each part has said."""
        return self.path / "logs"

    @property
    def acks(self) -> Path:
        """`<worker>.log`: what each worker was told is durable."""
        return self.path / "acks"

    @property
    def workers(self) -> Path:
        """`<worker>.json`: the slowest episodes that each worker has under way."""
        return self.path / "workers"

    @property
    def metrics(self) -> Path:
        """Every number of the run, one JSON object a line."""
        return self.path / "metrics.jsonl"

    @property
    def buffer(self) -> Path:
        """The buffer's store."""
        return self.path / "buffer"

    @property
    def archive(self) -> Path:
        """`*.parquet`: rollouts of groups that have ended."""
        return self.path / "archive"

    @property
    def weights(self) -> Path:
        """`<digest>.safetensors`."""
        return self.path / "weights"

    @property
    def evals(self) -> Path:
        """`update_N.json`: what held-out evaluation gave after N updates."""
        return self.path / "evals"

    @property
    def summary(self) -> Path:
        """Written when the run is finished."""
        return self.path / "summary.json"

    @property
    def state(self) -> Path:
        """How the run stands, for `penstock status`."""
        return self.path / "state.json"

    @property
    def lock(self) -> Path:
        """Held by the orchestrator as long as it lives."""
        return self.path / "run.lock"

    @property
    def is_run(self) -> bool:
        """Whether this is the directory of a run. Nothing else is ever moved or deleted."""
        return self.lock.is_file()

    def make(self) -> None:
        """Make the directory. Raises `ConfigError`, in one line, if that cannot be done or something else is there."""
        if self.path.exists() and not self.is_run and (not self.path.is_dir() or any(self.path.iterdir())):
            raise ConfigError(f"{self.path} exists and is not the directory of a run; choose another run.name or run.dir")
        try:
            for place in (self.logs, self.acks, self.buffer, self.weights, self.evals):
                place.mkdir(parents=True, exist_ok=True)
            self.lock.touch()
        except OSError as error:
            raise ConfigError(f"cannot write to the run directory {self.path}: {error.strerror}") from None

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold the run for the time of a block. Raises `ConflictError` if another process does."""
        # Children do not inherit the descriptor, so the lock ends with this process however it ends.
        descriptor = os.open(self.lock, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise ConflictError(f"run {self.path.name} is running already; `penstock status {self.path}` shows it") from None
        try:
            yield
        finally:
            os.close(descriptor)

    def is_held(self) -> bool:
        """Whether an orchestrator runs it now."""
        if not self.is_run:
            return False
        try:
            with self.held():
                return False
        except ConflictError:
            return True

    def set_aside(self) -> None:
        """Make room for a run from the start: what was here becomes `<name>.previous`, and what was there is deleted."""
        if not self.path.exists():
            return
        if not self.is_run:
            raise ConfigError(f"{self.path} is not the directory of a run and is left as it is; choose another run.name or run.dir")
        previous = RunDir(self.path.with_name(f"{self.path.name}.previous"))
        if previous.path.exists() and not previous.is_run:
            raise ConfigError(f"{previous.path} is in the way and is not the directory of a run")
        with self.held():
            if previous.path.exists():
                shutil.rmtree(previous.path)
            self.path.rename(previous.path)


def find_run(name: str, parent: Path) -> RunDir:
    """The run that a word on the command line means: a name under `parent`, or a path. Raises `ConfigError` if there is none."""
    for path in (parent / name, Path(name)):
        if RunDir(path).is_run:
            return RunDir(path.resolve())
    raise ConfigError(f"no run {name!r} in {parent}/")
