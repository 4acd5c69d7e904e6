"""Where the modules of this package are looked for: a generator's own folder may bring more of them, or other ones of the same name."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

VARIABLE = "PENSTOCK_GENERATOR_FOLDERS"
"""Folders of generator files, separated as in `PATH`. In the environment, so that processes that a generator starts anew see the same modules."""


def extended(own: Iterable[str], name: str) -> list[str]:
    """Places for the modules of the subpackage `name`: those in the folders of generators, then the shipped one."""
    folders = [Path(folder) / name for folder in os.environ.get(VARIABLE, "").split(os.pathsep) if folder]
    shipped = list(own)
    return [str(folder) for folder in folders if folder.is_dir() and str(folder) not in shipped] + shipped
