"""From a config to a finished run: `penstock train` without its words."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from penstock.clock import SystemClock
from penstock.config import dump
from penstock.errors import ConfigError, PenstockError
from penstock.orchestrator.config import RunConfig, load_run
from penstock.orchestrator.identity import check_same_run
from penstock.orchestrator.rundir import RunDir
from penstock.orchestrator.state import read_state
from penstock.orchestrator.summary import Summary, read_summary
from penstock.orchestrator.training import Training

log = logging.getLogger(__name__)


class StoppedError(PenstockError):
    """The run was told to stop, and has. Starting again resumes."""

    code = "stopped"

    def __init__(self, number: int, run_dir: RunDir) -> None:
        super().__init__(f"run {run_dir.path.name} was stopped by {signal.Signals(number).name}; starting it again goes on from here")
        self.number = number


def launch(config: RunConfig, *, fresh: bool = False) -> Summary:
    """Run `config` to its end, from where an earlier life left off, and give its summary; at once if it is finished.

    Raises `ConflictError` while another process runs it, `ConfigError` if it would become another run, `ProcessError` if a part cannot be kept running
    and `StoppedError` after SIGTERM or SIGINT.
    """
    run_dir = config.run_dir
    if fresh:
        run_dir.set_aside()
    run_dir.make()
    with run_dir.held(), _logged(run_dir.logs / "orchestrator.log"):
        finished = read_summary(run_dir.summary)
        if finished is not None and finished.updates >= config.run.updates:
            log.info("run %s is finished; --fresh starts it over", config.run.name)
            return finished
        if run_dir.config.exists():
            check_same_run(load_run(run_dir.config), config)
            before = read_state(run_dir.state)
            if before is not None and before.updates_done > config.run.updates:
                raise ConfigError(f"run.updates: {before.updates_done} updates are done already; it can be raised but not lowered to {config.run.updates}")
            log.info("run %s goes on", config.run.name)
        _write(run_dir.config, dump(config))
        run_dir.summary.unlink(missing_ok=True)
        return asyncio.run(_until_told(config, run_dir))


async def _until_told(config: RunConfig, run_dir: RunDir) -> Summary:
    """Train, or drain when a signal says so."""
    loop, told = asyncio.get_running_loop(), list[int]()
    task = asyncio.ensure_future(Training(config, SystemClock()).run())

    def stop(number: int) -> None:
        if not told:
            log.info("%s: draining", signal.Signals(number).name)
            task.cancel()
        told.append(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    try:
        return await task
    except asyncio.CancelledError:
        if not told:
            raise
        raise StoppedError(told[0], run_dir) from None


@contextlib.contextmanager
def _logged(path: Path) -> Iterator[None]:
    """What penstock says in this process also goes to a file."""
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("penstock")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    temporary.replace(path)
