import logging

import pytest

from penstock.buffer.api import EnvironmentStatus, RunStatus
from penstock.buffer.client import BufferClient
from penstock.errors import ProcessError
from penstock.metrics import MemorySink, Metrics
from penstock.orchestrator.sections import RunSection
from penstock.orchestrator.watch import Watch, ledger_records
from penstock.process.ports import free_ports
from penstock.process.supervisor import supervise
from penstock.types import Laws, Version


class LeapingClock:
    """Sleeping takes no time here, and all the time it should there."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds


async def test_a_run_that_stands_still_says_why_and_in_the_end_stops(caplog: pytest.LogCaptureFixture) -> None:
    clock = LeapingClock()
    section = RunSection(name="r", updates=9, stall_seconds=10.0, give_up_seconds=35.0)
    nobody = f"http://127.0.0.1:{free_ports(1)[0]}"
    seen: list[RunStatus] = []
    with caplog.at_level(logging.WARNING):
        async with supervise(clock) as children, BufferClient(nobody, "r", deadline_seconds=0.01) as buffer:
            watch = Watch(section, children, buffer, Metrics(MemorySink(), clock=clock), clock)
            with pytest.raises(ProcessError, match="no new update for 35 s: the buffer does not answer"):
                await watch.work(seen.append)
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [f"no new update for {seconds} s" for seconds in (10, 20, 30)]
    assert seen == []


def test_the_ledger_is_told_as_metrics_by_state() -> None:
    groups = {"open": 2, "ready": 1, "dropped(stale)": 3, "dropped(too_few)": 1}
    environment = EnvironmentStatus(
        credit_tokens=100, held_tokens=40, mean_group_tokens=None, groups=groups, members={}, mean_dropped_longest={"stale": 30.5, "too_few": 2.0}
    )
    status = RunStatus(
        run="r",
        laws=Laws(),
        newest=Version(run="r", version=1, digest="d"),
        live_version=1,
        next_update=1,
        term=None,
        checkpoints=(),
        cursors={},
        environments={"sort": environment, "guess": environment},
        imbalance=0,
    )
    sink = MemorySink()
    Metrics(sink).emit(1, *ledger_records(status))
    assert sink.emissions[0].values == {
        "ledger/imbalance": 0,
        **{
            f"ledger/{env}/{name}": value
            for env in ("sort", "guess")
            for name, value in {
                "credit_tokens": 100,
                "held_tokens": 40,
                "dropped/stale": 3,
                "dropped/too_few": 1,
                "dropped_longest/stale": 30.5,
                "dropped_longest/too_few": 2.0,
            }.items()
        },
        "ledger/open": 4,
        "ledger/ready": 2,
        "ledger/dropped": 8,
    }
