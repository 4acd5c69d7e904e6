"""Worker processes of a generator. One that dies costs the rollout it was at, which is then a failed one, and is replaced."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import multiprocessing.connection
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

Task = dict[str, Any]
Work = Callable[[Task], dict[str, Any]]
Failed = Callable[[Task, str], dict[str, Any]]
"""What is made of a task whose worker died, and why it did."""
_NO_MORE = b""


def worked_off(tasks: Iterable[Task], work: Work, failed: Failed, num_process: int) -> Iterator[dict[str, Any]]:
    """`work(task)` for all tasks, `num_process` at a time, in the order in which they are done. No more tasks are taken than can be worked on."""
    pool = _Pool(work, failed)
    waiting = iter(tasks)
    try:
        for task in waiting:
            pool.give(task)
            if pool.num_busy < num_process:
                continue
            yield from pool.done()
        while pool.num_busy:
            yield from pool.done()
    finally:
        pool.end()


class _Pool:
    """Processes that are started when they are needed, each with a pipe of its own: a shared queue would be stuck by one that dies while it holds the lock."""

    def __init__(self, work: Work, failed: Failed) -> None:
        self._work = work
        self._failed = failed
        # A forked process has the generator's functions as they are; elsewhere they must be importable.
        has_fork = "fork" in multiprocessing.get_all_start_methods()
        self._context = multiprocessing.get_context("fork") if has_fork else multiprocessing.get_context("spawn")
        self._idle: list[tuple[Connection[Any, Any], BaseProcess]] = []
        self._busy: dict[Connection[Any, Any], tuple[BaseProcess, Task]] = {}

    @property
    def num_busy(self) -> int:
        return len(self._busy)

    def give(self, task: Task) -> None:
        """Let a process work on `task`."""
        while self._idle:
            near, process = self._idle.pop()
            with contextlib.suppress(OSError):
                near.send_bytes(json.dumps(task).encode())
                self._busy[near] = (process, task)
                return
            _reap(near, process)
        near, far = self._context.Pipe()
        process = self._context.Process(target=_work_off, args=(far, self._work))
        process.start()
        far.close()
        near.send_bytes(json.dumps(task).encode())
        self._busy[near] = (process, task)

    def done(self) -> Iterator[dict[str, Any]]:
        """Wait until at least one task is done; what came of it."""
        for near in multiprocessing.connection.wait(list(self._busy)):
            assert isinstance(near, Connection)
            process, task = self._busy.pop(near)
            try:
                result = json.loads(near.recv_bytes())
            except (EOFError, OSError):
                _reap(near, process)
                yield self._failed(task, f"its worker process died with exit code {process.exitcode}")
            else:
                self._idle.append((near, process))
                yield result

    def end(self) -> None:
        """End all processes, busy ones too."""
        for near, process in [*self._idle, *((near, process) for near, (process, _) in self._busy.items())]:
            if near in self._busy:
                process.kill()
            _reap(near, process)
        self._idle.clear()
        self._busy.clear()


def _reap(near: Connection[Any, Any], process: BaseProcess) -> None:
    # Told, and not only left alone: processes that were forked later have this end of its pipe, too.
    with contextlib.suppress(OSError):
        near.send_bytes(_NO_MORE)
    near.close()
    process.join(5.0)
    if process.is_alive():
        process.kill()
        process.join()


def _work_off(far: Connection[Any, Any], work: Work) -> None:
    """A worker's life: it ends when it is told, or nobody is left to give it work."""
    with contextlib.suppress(EOFError, OSError):
        while (told := far.recv_bytes()) != _NO_MORE:
            far.send_bytes(json.dumps(work(json.loads(told))).encode())
