"""`state.json`: how a run stands. Written by its orchestrator, read by `penstock status` and by the next orchestrator."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import msgspec

from penstock.errors import ConfigError
from penstock.orchestrator.rundir import RunDir
from penstock.process.identity import ProcessId
from penstock.process.supervisor import PartStatus


class Phase(StrEnum):
    """What an orchestrator is doing, or what came of it."""

    STARTING = "starting"
    RUNNING = "running"
    FINISHING = "finishing"
    """All updates are done; the last evaluation runs."""
    DRAINING = "draining"
    FINISHED = "finished"
    STOPPED = "stopped"
    """Ended by a signal; starting again resumes."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """How a run stands."""

    run: str
    phase: Phase
    orchestrator: ProcessId
    buffer_url: str
    updates: int
    """Updates that the run is to have."""
    updates_done: int = 0
    parts: tuple[PartStatus, ...] = ()
    reason: str | None = None
    """Why it failed."""
    wall_seconds: float = 0.0
    """Of all lives of the run together."""
    cpu_seconds: float = 0.0
    """Of all processes of all lives."""
    restarts: int = 0
    """Parts that were started again, in all lives."""
    written_at: float = 0.0


def write_state(path: Path, state: RunState) -> None:
    """Replace the file at once, so that a reader never sees half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(state), indent=1))
    temporary.replace(path)


def read_state(path: Path) -> RunState | None:
    """The state that was written last; None if there is none that can be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=RunState)
    except (OSError, msgspec.DecodeError):
        return None


def served_at(run_dir: RunDir) -> tuple[str, tuple[str, ...]]:
    """Where the buffer and the servers of a run listen. Raises `ConfigError` if the run is not running."""
    state = read_state(run_dir.state)
    if state is None or not run_dir.is_held():
        raise ConfigError(f"run {run_dir.path.name} is not running; start it, or name --buffer and --server")
    servers = tuple(part.url for part in state.parts if part.name.startswith("server") and part.url is not None)
    if not servers:
        raise ConfigError(f"run {run_dir.path.name} has no inference server yet; try again in a moment, or name one with --server")
    return state.buffer_url, servers


def describe_state(state: RunState, *, is_held: bool, now: float) -> str:
    """A state in words; `is_held` says whether an orchestrator lives. One that was killed could not write how it ended."""
    phase = state.phase if is_held or state.phase in _ENDS else f"killed while {state.phase}"
    lines = [
        f"run {state.run}: {phase}, {state.updates_done} of {state.updates} updates, {state.restarts} restarts",
        f"{state.wall_seconds:.0f} s and {state.cpu_seconds:.0f} CPU s used; this was {max(0.0, now - state.written_at):.0f} s ago",
    ]
    if state.reason is not None:
        lines.append(state.reason)
    if is_held:
        lines += [f"  {part.name:<20} {part.state:<10} pid {part.process.pid if part.process else '-':<8} {_history(part)}".rstrip() for part in state.parts]
    return "\n".join(lines)


_ENDS = (Phase.FINISHED, Phase.STOPPED, Phase.FAILED)


def _history(part: PartStatus) -> str:
    restarted = f"started again {part.restarts} times, last after {part.last_exit}" if part.restarts else ""
    return "  ".join(text for text in (part.url or "", restarted) if text)
