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

    def __init__(self, config: RunConfig, run_dir: RunDir, children: Supervisor) -> None:
        self._config, self._run_dir, self._children = config, run_dir, children
        self._asked: asyncio.Queue[tuple[int, Version]] = asyncio.Queue()

    def ask(self, update: int, version: Version) -> None:
        """Evaluate the weights that are newest after `update` updates. A result that is there already stays."""
        if eval_result(self._run_dir, update).exists():
            return
        name = f"{version.digest}.safetensors"
        # A name of its own, now: the learner removes weights that have gone out of use.
        with contextlib.suppress(FileExistsError):
            os.link(self._run_dir.weights / name, self._run_dir.evals / name)
        self._asked.put_nowait((update, version))

    async def work(self) -> None:
        """Evaluate for as long as the run lasts. One child at a time: training needs the cores."""
        while True:
            update, version = await self._asked.get()
            spec = eval_child(self._config, self._run_dir, update, version)
            self._children.add(spec)
            await self._children.ended(spec.name)
            self._children.forget(spec.name)
            found = read_result(self._run_dir, update)
            log.info("held out after %d updates: greedy %s, sampled %s", update, found.greedy, found.sampled)
            self._asked.task_done()

    async def done(self) -> None:
        """Wait until everything that was asked for is evaluated, then let go of the copies."""
        await self._asked.join()
        for path in self._run_dir.evals.glob("*.safetensors"):
            path.unlink()


def read_result(run_dir: RunDir, update: int) -> HeldOut:
    """What was found after `update` updates."""
    path = eval_result(run_dir, update)
    return msgspec.json.decode(path.read_bytes(), type=HeldOut) if path.exists() else HeldOut()
