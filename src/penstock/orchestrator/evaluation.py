"""Held-out evaluation during a run: children that load one version from its file in an engine of their own, one after another."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os

import msgspec

from penstock.orchestrator.config import RunConfig
from penstock.orchestrator.plan import eval_child, eval_result
from penstock.orchestrator.rundir import RunDir
from penstock.orchestrator.summary import HeldOut
from penstock.process.supervisor import Supervisor
from penstock.types import Version

log = logging.getLogger(__name__)


class Evaluator:
    """Evaluates what is asked for, in order, while training goes on."""

    def __init__(self, config: RunConfig, run_dir: RunDir, children: Supervisor, buffer_url: str) -> None:
        self._config, self._run_dir, self._children, self._buffer_url = config, run_dir, children, buffer_url
        self._queue: asyncio.Queue[tuple[int, Version]] = asyncio.Queue()
        self._asked = evaluated_updates(run_dir)

    def look(self, update: int, version: Version) -> None:
        """Evaluate the weights that are newest after `update` updates if it is time. What an earlier life did not get to is due, too."""
        if is_due(max(self._asked, default=0), update, self._config.eval.every_updates):
            self.ask(update, version)

    def ask(self, update: int, version: Version) -> None:
        """Evaluate the weights that are newest after `update` updates. A result that is there already stays."""
        if update in self._asked:
            return
        name = f"{version.digest}.safetensors"
        try:
            # A name of its own, now: the learner removes weights that have gone out of use.
            with contextlib.suppress(FileExistsError):
                os.link(self._run_dir.weights / name, self._run_dir.evals / name)
        except FileNotFoundError:
            log.info("the weights after %d updates are out of use already; the next are evaluated in their place", update)
            return
        self._asked.add(update)
        self._queue.put_nowait((update, version))

    async def work(self) -> None:
        """Evaluate for as long as the run lasts. One child at a time: training needs the cores."""
        while True:
            update, version = await self._queue.get()
            spec = eval_child(self._config, self._run_dir, update, version, self._buffer_url)
            self._children.add(spec)
            await self._children.ended(spec.name)
            self._children.forget(spec.name)
            found = read_result(self._run_dir, update)
            log.info("held out after %d updates: greedy %s, sampled %s", update, found.greedy, found.sampled)
            self._queue.task_done()

    async def done(self) -> None:
        """Wait until everything that was asked for is evaluated, then let go of the copies."""
        await self._queue.join()
        for path in self._run_dir.evals.glob("*.safetensors"):
            path.unlink()


def is_due(before: int, now: int, every_updates: int) -> bool:
    """Whether a multiple of `every_updates` was reached since `before` updates were done; 0: never.

    >>> is_due(18, 21, 10), is_due(20, 29, 10), is_due(0, 5, 0)
    (True, False, False)
    """
    return every_updates > 0 and before // every_updates < now // every_updates


def evaluated_updates(run_dir: RunDir) -> set[int]:
    """After how many updates there was an evaluation."""
    return {int(path.stem.removeprefix("update_")) for path in run_dir.evals.glob("update_*.json")}


def read_result(run_dir: RunDir, update: int) -> HeldOut:
    """What was found after `update` updates."""
    path = eval_result(run_dir, update)
    return msgspec.json.decode(path.read_bytes(), type=HeldOut) if path.exists() else HeldOut()
