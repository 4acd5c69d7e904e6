"""A learner whose process is there and does nothing any more, beside a real buffer. Only the clock of the watch leaps."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.services.buffers import Process
from tests.unit.orchestrator.test_watch import LeapingClock

from penstock.buffer import api
from penstock.buffer.api import RunStatus
from penstock.buffer.client import BufferClient
from penstock.clock import SystemClock
from penstock.metrics import MemorySink, Metrics
from penstock.orchestrator.sections import RunSection
from penstock.orchestrator.watch import Watch
from penstock.process.child import ChildSpec
from penstock.process.supervisor import supervise
from penstock.types import Laws


class StartedAgain(Exception):
    """Seen by the test, which ends the watch."""


async def test_a_learner_that_no_longer_renews_its_term_is_killed_and_started_again(tmp_path: Path) -> None:
    async def arguments(_: int) -> Sequence[str]:
        return ("-c", "import time; time.sleep(600)")

    spec = ChildSpec(name="learner", program=(sys.executable,), arguments=arguments, log=tmp_path / "learner.log")
    section = RunSection(name="r", updates=9, stall_seconds=1e9, give_up_seconds=1e9)
    (tmp_path / "buffer").mkdir()
    process = Process(tmp_path / "buffer")
    try:
        async with BufferClient(process.url, "r") as buffer, supervise(SystemClock()) as children:
            await buffer.open_run(Laws(), "0" * 32)
            children.add(spec)
            await children.ready("learner")
            term = (await buffer.take_term(api.TakeTerm(owner="one", checkpoint=0))).term
            renewing: list[asyncio.Task[object]] = []

            def look(_: RunStatus) -> None:
                if len(renewing) < 3 and all(task.done() for task in renewing):
                    renewing.append(asyncio.ensure_future(buffer.renew_term(term)))
                if children.status()[0].restarts:
                    raise StartedAgain

            clock = LeapingClock()
            watch = Watch(section, children, buffer, Metrics(MemorySink(), clock=clock), clock)
            async with asyncio.timeout(30):
                with pytest.raises(StartedAgain):
                    await watch.work(look)
            assert children.status()[0].last_exit == "its term was not renewed for 30 s"
    finally:
        process.kill()
