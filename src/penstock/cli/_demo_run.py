"""One demo: `penstock train` as a process of its own, a view of it, and somebody who kills its learner half way."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

from rich.console import Console
from rich.live import Live

from penstock.dashboard.asking import Asker, Standing
from penstock.dashboard.following import Follower
from penstock.dashboard.history import History
from penstock.dashboard.report import write_report
from penstock.dashboard.screen import screen
from penstock.dashboard.sentences import Teller
from penstock.dashboard.snapshot import Part, Snapshot
from penstock.orchestrator.config import RunConfig, load_run
from penstock.orchestrator.state import Phase, RunState, read_state
from penstock.orchestrator.summary import Summary, describe_summary, read_summary
from penstock.process.child import Child
from penstock.process.logs import last_lines

LOOK_SECONDS = 0.5
_REPLAYED = range(3, 9)
"""How many updates after a checkpoint the learner is killed: enough to be seen replayed, few enough to be back soon."""

Show = Callable[[Snapshot], None]


class DemoRun:
    """Made for one run."""

    def __init__(self, yaml: Path, overrides: Sequence[str], *, kill: bool, started: float) -> None:
        """`started`: when the demo began, on the monotonic clock."""
        self._kill, self._started = kill, started
        self._config: RunConfig = load_run(yaml, overrides)
        self._console = Console()
        self._events: list[str] = []
        self._first_reward_seconds: float | None = None
        self._killed_at: tuple[int, float] | None = None
        """Updates done and time when the learner was killed."""
        self._back_seconds: float | None = None

    async def show(self, child: Child, log: Path) -> int:
        """Show the run that `child` is until it ends, and give the exit code. SIGINT and SIGTERM stop it; it can then be gone on with."""
        told = self._stop_when_told(child)
        exit_code = await self._watch(child)
        if told:
            self._console.print(f"stopped; what there is, is in {self._config.run_dir.path}", highlight=False, soft_wrap=True)
            return 128 + told[0]
        if exit_code != 0:
            sys.stderr.write("\n".join(last_lines(log, 12)) + "\n")
            return exit_code if exit_code > 0 else 1
        self._tell_the_end()
        return 0

    def _stop_when_told(self, child: Child) -> list[int]:
        """Pass signals on. The list gets what came."""
        told: list[int] = []

        def stop(number: int) -> None:
            told.append(number)
            child.terminate()

        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop, number)
        return told

    async def _watch(self, child: Child) -> int:
        """Show the run until its process has ended."""
        ending = asyncio.ensure_future(child.wait())
        async with AsyncExitStack() as stack:
            show = stack.enter_context(_shown(self._console))
            asker: Asker | None = None
            while not ending.done():
                state = self._state_of(child)
                if state is not None:
                    # Only now: until the new run has begun, an older one may lie in its place.
                    if asker is None:
                        asker = await stack.enter_async_context(self._asker())
                    show(await self._look(asker, state))
                await asyncio.wait({ending}, timeout=LOOK_SECONDS)
            if asker is not None and (state := self._state_of(child)) is not None:
                show(await self._look(asker, state))
        return ending.result()

    def _asker(self) -> Asker:
        return Asker(self._config.run.name, self._config.run_dir.path, self._config.model.path, started=self._started)

    def _state_of(self, child: Child) -> RunState | None:
        state = read_state(self._config.run_dir.state)
        return state if state is not None and state.orchestrator.pid == child.id.pid else None

    async def _look(self, asker: Asker, state: RunState) -> Snapshot:
        snapshot = await asker.look(_standing(state), self._events)
        if snapshot.rewards and self._first_reward_seconds is None:
            self._first_reward_seconds = snapshot.elapsed_seconds
        if self._kill and self._killed_at is None:
            self._kill_if_due(asker, state, snapshot)
        elif self._killed_at is not None and self._back_seconds is None and snapshot.updates_done > self._killed_at[0]:
            self._back_seconds = time.monotonic() - self._killed_at[1]
            self._events.append(f"the learner is back: {self._back_seconds:.1f} s after the kill there is a new update")
        return snapshot

    def _kill_if_due(self, asker: Asker, state: RunState, snapshot: Snapshot) -> None:
        """Kill the learner once, half way, some updates after a checkpoint."""
        status, done = asker.status, snapshot.updates_done
        if state.phase is not Phase.RUNNING or status is None or not status.checkpoints or done < state.updates // 2:
            return
        since = done - status.checkpoints[-1].update
        learner = next((part for part in state.parts if part.name == "learner"), None)
        if since not in _REPLAYED or learner is None or learner.process is None or not learner.process.is_alive:
            return
        os.kill(learner.process.pid, signal.SIGKILL)
        self._killed_at = (done, time.monotonic())
        self._events.append(f"killed the learner (pid {learner.process.pid}) with -9 after {done} updates, {since} after its last checkpoint; sampling goes on")

    def _tell_the_end(self) -> None:
        run_dir = self._config.run_dir
        summary = read_summary(run_dir.summary)
        assert summary is not None, "a run that ended well has a summary"
        report = write_report(run_dir.path)
        for line in self._ending(summary, report):
            self._console.print(line, highlight=False, soft_wrap=True)

    def _ending(self, summary: Summary, report: Path) -> Iterator[str]:
        yield ""
        yield describe_summary(self._config.run.name, summary)
        split = History(Follower(self._config.run_dir.metrics).lines()).seconds()
        yield "learner    " + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in split.items())
        if self._first_reward_seconds is not None:
            yield f"times      first reward after {self._first_reward_seconds:.1f} s, everything after {time.monotonic() - self._started:.0f} s"
        if self._back_seconds is not None:
            yield f"kill       a new update {self._back_seconds:.1f} s after the learner was killed with -9"
        where = os.path.relpath(self._config.run_dir.path)
        called = Path(sys.argv[0])
        # As it was called, so that the line can be pasted: on a fresh machine the program is in `.venv/bin` only.
        program = os.path.relpath(called) if called.name == "penstock" else f"{os.path.relpath(sys.executable)} -m penstock"
        yield f"report     {os.path.relpath(report)}"
        yield f"verify     {program} verify {where}"
        yield f"rebuild    {program} replay {where}     (the final weights from the archive, bit for bit)"


def _standing(state: RunState) -> Standing:
    return Standing(
        phase=state.phase,
        updates=state.updates,
        updates_done=state.updates_done,
        parts=tuple(Part(name=part.name, state=part.state, restarts=part.restarts) for part in state.parts),
        buffer_url=state.buffer_url,
        server_urls=tuple(part.url for part in state.parts if part.name.startswith("server-") and part.url is not None),
    )


@contextmanager
def _shown(console: Console) -> Iterator[Show]:
    """How snapshots are shown: drawn over each other in a terminal, told in lines anywhere else."""
    if not console.is_terminal:
        teller = Teller()

        def tell(now: Snapshot) -> None:
            for line in teller.lines(now):
                console.print(line, highlight=False, markup=False, soft_wrap=True)

        yield tell
        return
    with Live(console=console, refresh_per_second=4, transient=False) as live:
        yield lambda now: live.update(screen(now, width=max(20, min(80, console.width - 60))))
