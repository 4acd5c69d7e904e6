"""What a generator file defines, found out by running it in another process: for those whose text does not tell."""

from __future__ import annotations

import asyncio
from pathlib import Path

from penstock.buffer.compat.generators.discovery import DescribeError, Outline, UnsureError
from penstock.buffer.compat.generators.frames import FrameError
from penstock.buffer.compat.generators.processes import START_SECONDS, ChildSettings, start_generator_process


class Described:
    """Files that were run to know them; each once, until it changes."""

    def __init__(self, settings: ChildSettings, log_file: Path) -> None:
        self._settings = settings
        self._log_file = log_file
        self._known: dict[tuple[Path, int, int], Outline | DescribeError] = {}

    def __call__(self, path: Path) -> Outline:
        """What is known of a file. Raises `DescribeError` if it could not be run, `UnsureError` if it was not run yet."""
        known = self._known.get(_version(path))
        if known is None:
            raise UnsureError
        if isinstance(known, DescribeError):
            raise known
        return known

    async def learn(self, path: Path) -> None:
        """Run a file, so that it is known."""
        key = _version(path)
        try:
            self._known[key] = await describe(path, self._settings, self._log_file)
        except DescribeError as error:
            self._known[key] = error


async def describe(path: Path, settings: ChildSettings, log_file: Path, *, seconds: float = START_SECONDS) -> Outline:
    """What a file defines. Raises `DescribeError` if running it does not tell."""
    try:
        child, frames = await start_generator_process("describe", path, settings, log_file, {})
    except (OSError, FrameError) as error:
        raise DescribeError(f"its process cannot be started: {error}") from None
    try:
        told = await asyncio.wait_for(frames.receive(), seconds)
    except TimeoutError:
        raise DescribeError(f"it was not done after {seconds:g} s") from None
    except FrameError:
        raise DescribeError("its process ended without a word") from None
    finally:
        child.kill()
        frames.close()
        await child.wait()
    if "failed" in told:
        raise DescribeError(told["failed"])
    return Outline(task_type=told["task_type"], names=frozenset(told["names"]))


def _version(path: Path) -> tuple[Path, int, int]:
    try:
        status = path.stat()
    except OSError:
        return path, 0, 0
    return path, status.st_mtime_ns, status.st_size
