"""Children here are real processes that run small programs."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.clock import SystemClock
from penstock.errors import ProcessError
from penstock.process.child import ChildSpec
from penstock.process.identity import ProcessId, identify
from penstock.process.ports import free_ports
from penstock.process.restarts import RestartPolicy
from penstock.process.supervisor import PartState, Supervisor, supervise

QUICK = RestartPolicy(limit=3, pauses_seconds=(0.0,))
SLEEPER = "import time\nprint('started', flush=True)\ntime.sleep(60)"


def part(tmp_path: Path, program: str, name: str = "part", **more: object) -> ChildSpec:
    async def arguments(start: int) -> Sequence[str]:
        return ("-c", program, str(start))

    return replace(ChildSpec(name=name, program=(sys.executable,), arguments=arguments, log=tmp_path / f"{name}.log", policy=QUICK), **more)  # type: ignore[arg-type]


class Changes:
    """Lets a test wait for a change of a supervisor's parts."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def __call__(self) -> None:
        self._event.set()

    async def until(self, children: Supervisor, name: str, *, restarts: int, state: PartState = PartState.READY) -> ProcessId:
        async with asyncio.timeout(20):
            while True:
                found = next(status for status in children.status() if status.name == name)
                if found.restarts == restarts and found.state is state and found.process is not None:
                    return found.process
                await self._event.wait()
                self._event.clear()


async def test_a_killed_child_is_started_again_and_told_which_life_it_is(tmp_path: Path) -> None:
    changes = Changes()
    async with supervise(SystemClock(), changes) as children:
        children.add(part(tmp_path, SLEEPER))
        first = await changes.until(children, "part", restarts=0)
        os.kill(first.pid, signal.SIGKILL)
        second = await changes.until(children, "part", restarts=1)
        assert second != first
        assert second.is_alive
        assert children.status()[0].last_exit == "SIGKILL"
    assert not second.is_alive
    assert (tmp_path / "part.log").read_text().count("--- ") == 2


async def test_a_child_that_ends_by_itself_is_quoted(tmp_path: Path) -> None:
    changes = Changes()
    async with supervise(SystemClock(), changes) as children:
        children.add(part(tmp_path, f"import sys\nif sys.argv[1] == '0': sys.exit('penstock: no room left')\n{SLEEPER}"))
        await changes.until(children, "part", restarts=1)
        assert children.status()[0].last_exit == "exit 1: no room left"


async def test_a_child_that_keeps_dying_stops_everything_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        async with supervise(SystemClock()) as children:
            children.add(part(tmp_path, SLEEPER, "healthy"))
            await children.ready("healthy")
            healthy = children.status()[0].process
            children.add(part(tmp_path, "import sys; sys.exit('no such model')", "broken"))
            await children.ended("broken")
    (error,) = caught.value.exceptions
    assert isinstance(error, ProcessError)
    assert str(error).startswith("broken died 3 times within 300 s without progress, the last time with exit 1")
    assert "no such model" in str(error).splitlines()[-1]
    assert healthy is not None
    assert not healthy.is_alive


async def test_progress_forgives_deaths(tmp_path: Path) -> None:
    changes = Changes()
    async with supervise(SystemClock(), changes) as children:
        children.add(part(tmp_path, SLEEPER))
        for restarts in range(6):
            process = await changes.until(children, "part", restarts=restarts)
            children.progress()
            os.kill(process.pid, signal.SIGKILL)
        await changes.until(children, "part", restarts=6)


async def test_a_wrong_setting_is_not_tried_twice(tmp_path: Path) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        async with supervise(SystemClock()) as children:
            children.add(part(tmp_path, "raise SystemExit(2)"))
            await children.ended("part")
    assert "exit 2" in str(caught.value.exceptions[0])
    assert (tmp_path / "part.log").read_text().count("--- ") == 1


async def test_a_child_that_is_done_is_left_alone_and_one_that_must_not_end_is_not(tmp_path: Path) -> None:
    changes = Changes()
    async with supervise(SystemClock(), changes) as children:
        children.add(part(tmp_path, "pass", "done", ends=True))
        await children.ended("done")
        children.add(part(tmp_path, "import sys, time\nif sys.argv[1] == '1': time.sleep(60)", "endless"))
        await changes.until(children, "endless", restarts=1)
        assert [status.state for status in children.status()] == [PartState.ENDED, PartState.READY]


async def test_a_child_that_will_not_end_is_ended_after_its_grace(tmp_path: Path) -> None:
    stubborn = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEPER
    polite = "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit('bye'))\n" + SLEEPER
    async with supervise(SystemClock()) as children:
        for name, program in (("stubborn", stubborn), ("polite", polite)):
            children.add(part(tmp_path, program, name))
        await told(tmp_path / "stubborn.log", "started")
        await told(tmp_path / "polite.log", "started")
        processes = [status.process for status in children.status()]
        await children.stop("stubborn", "polite", grace_seconds=0.3)
        assert [process is not None and process.is_alive for process in processes] == [False, False]
        assert "bye" in (tmp_path / "polite.log").read_text()
        assert {status.state for status in children.status()} == {PartState.STOPPED}


async def until(holds: Callable[[], bool]) -> None:
    """Wait for something that another process does."""
    async with asyncio.timeout(60):
        while True:
            if holds():
                return
            await asyncio.sleep(0.01)


async def told(log: Path, word: str, times: int = 1) -> None:
    """Wait until a log has so many lines that are `word`."""
    await until(lambda: log.exists() and log.read_text().splitlines().count(word) >= times)


async def test_what_a_dead_child_has_started_ends_with_it(tmp_path: Path) -> None:
    changes = Changes()
    program = "import subprocess, sys, time\nprint(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']).pid, flush=True)\n" + SLEEPER
    async with supervise(SystemClock(), changes) as children:
        children.add(part(tmp_path, program))
        first = await changes.until(children, "part", restarts=0)
        await told(tmp_path / "part.log", "started")
        grandchild = identify(int((tmp_path / "part.log").read_text().splitlines()[-2]))
        assert grandchild.is_alive
        os.kill(first.pid, signal.SIGKILL)
        await changes.until(children, "part", restarts=1)
        await until(lambda: not grandchild.is_alive)


SERVER = """
import http.server, pathlib, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if pathlib.Path({marker!r}).exists() else 503)
        self.end_headers()
    def log_message(self, *_): pass
http.server.HTTPServer.allow_reuse_address = True
http.server.HTTPServer(("127.0.0.1", {port}), Handler).serve_forever()
"""


async def test_a_server_is_ready_when_it_says_so(tmp_path: Path) -> None:
    (port,), marker = free_ports(1), tmp_path / "ready"
    async with supervise(SystemClock()) as children:
        children.add(part(tmp_path, SERVER.format(marker=str(marker), port=port), url=f"http://127.0.0.1:{port}"))
        ready = asyncio.create_task(children.ready("part"))
        done, _ = await asyncio.wait([ready], timeout=0.5)
        assert not done
        marker.touch()
        await asyncio.wait_for(ready, 20)


async def test_a_server_that_never_gets_ready_is_killed_and_in_the_end_given_up(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with pytest.raises(ExceptionGroup) as caught:
        async with supervise(SystemClock()) as children:
            children.add(part(tmp_path, SLEEPER, url=f"http://127.0.0.1:{port}", ready_seconds=0.2))
            await children.ready("part")
    assert "(not ready after 0.2 s)" in str(caught.value.exceptions[0])


SPARE = """
import json, sys
if sys.argv[1] == "wait":
    print("warm", flush=True)
    line = sys.stdin.readline()
    if not line: sys.exit()
    print("told", *json.loads(line), flush=True)
else:
    print("cold", *sys.argv[1:], flush=True)
import time; time.sleep(60)
"""


async def test_a_spare_takes_the_place_of_a_killed_child_and_another_spare_is_made(tmp_path: Path) -> None:
    async def arguments(start: int) -> Sequence[str]:
        return ("life", str(start))

    program = tmp_path / "program.py"
    program.write_text(SPARE)
    cold = part(tmp_path, "", arguments=arguments, spare=("wait",), spare_delay_seconds=0.0)
    spec = replace(cold, program=(sys.executable, str(program)))
    changes = Changes()
    async with supervise(SystemClock(), changes) as children:
        children.add(spec)
        first = await changes.until(children, "part", restarts=0)
        await told(spec.log, "cold life 0")
        await told(spec.log, "warm")
        os.kill(first.pid, signal.SIGKILL)
        second = await changes.until(children, "part", restarts=1)
        await told(spec.log, "told life 1")
        await told(spec.log, "warm", times=2)
    assert not second.is_alive
    lines = [line for line in spec.log.read_text().splitlines() if not line.startswith("---")]
    assert sorted(lines) == ["cold life 0", "told life 1", "warm", "warm"]


async def test_a_dead_spare_is_no_harm(tmp_path: Path) -> None:
    async def arguments(start: int) -> Sequence[str]:
        return ("-c", SLEEPER, str(start))

    spec = part(tmp_path, "", arguments=arguments, spare=("-c", "print('warm', flush=True)"), spare_delay_seconds=0.0)
    changes = Changes()
    async with supervise(SystemClock(), changes) as children:
        children.add(spec)
        first = await changes.until(children, "part", restarts=0)
        await told(spec.log, "warm")
        os.kill(first.pid, signal.SIGKILL)
        await changes.until(children, "part", restarts=1)


LEASHED = """
import sys, time
from penstock.process.leash import hold
hold()
print("held", flush=True)
time.sleep(60)
"""
PARENT = """
import asyncio, pathlib, sys
from penstock.process.child import start_child
async def main():
    child = await start_child([sys.executable, "-c", sys.argv[2]], log=pathlib.Path(sys.argv[1]), environment={})
    print(child.id.pid, flush=True)
    await child.wait()
asyncio.run(main())
"""


async def test_a_child_does_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    log = tmp_path / "child.log"
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", PARENT, str(log), LEASHED, stdout=asyncio.subprocess.PIPE)
    assert parent.stdout is not None
    child = identify(int(await parent.stdout.readline()))
    await told(log, "held")
    parent.kill()
    await parent.wait()
    await until(lambda: not child.is_alive)


async def test_a_child_whose_parent_is_gone_before_it_holds_the_leash_dies_too() -> None:
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", LEASHED, env={**os.environ, "PENSTOCK_PARENT": "1"})
    assert await child.wait() == -signal.SIGKILL
