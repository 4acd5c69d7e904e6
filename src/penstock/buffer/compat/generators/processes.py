"""How a generator's process is started, whatever it is started for."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.buffer.compat.generators.frames import FrameError, Frames, open_frames
from penstock.process.child import Child, start_with_socket

CHILD_MODULE = "penstock.buffer.compat.generators.child"
START_SECONDS = 60.0
"""A generator file may import much before it is ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSettings:
    """What all processes of generators have in common."""

    folders: tuple[Path, ...]
    environment: Mapping[str, str]


async def start_generator_process(mode: str, file: Path, settings: ChildSettings, log_file: Path, order: Mapping[str, Any]) -> tuple[Child, Frames]:
    """Start a generator's process and tell it what to do. Raises `OSError` or `FrameError` if it cannot be started."""
    words = (sys.executable, "-m", CHILD_MODULE, mode)
    child, near = await start_with_socket(words, log=log_file, environment=settings.environment)
    frames = await open_frames(near)
    try:
        await frames.send({"file": str(file), "folders": [str(folder) for folder in settings.folders], **order})
    except FrameError:
        child.kill()
        raise
    return child, frames
