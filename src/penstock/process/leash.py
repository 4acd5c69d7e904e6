"""A leash: a child that does not outlive its parent, however the parent ends.

The parent puts its own number into the child's environment (`leashed`); the child calls `hold` before anything else. Linux then kills it when the
parent's thread that started it ends; a parent that was gone already is found by asking. Elsewhere only the second holds.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

VARIABLE = "PENSTOCK_PARENT"
_PR_SET_PDEATHSIG = 1


def leashed() -> dict[str, str]:
    """What a child's environment needs so that `hold` ties it to this process."""
    return {VARIABLE: str(os.getpid())}


def hold() -> None:
    """Tie this process to the parent that its environment names; nothing happens if it names none."""
    # Taken out of the environment: what this process starts has another parent.
    parent = os.environ.pop(VARIABLE, None)
    if parent is None:
        return
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent):
        os.kill(os.getpid(), signal.SIGKILL)
