"""A second opinion from the package `math-verify`, if it is installed, in a process of its own: it uses signals and may take as long as it likes.

python -m penstock.buffer.compat.shim.generator.reward_utils._math_verify      one question and one answer a line, as JSON
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import select
import subprocess
import sys
from functools import cache

DEADLINE_SECONDS = 20.0
"""Longer than it takes to load."""
_MODULE = "penstock.buffer.compat.shim.generator.reward_utils._math_verify"
_helpers: dict[int, subprocess.Popen[str]] = {}
"""By the process that uses it: a forked one must not share its parent's."""


@cache
def is_installed() -> bool:
    """Whether there is anybody to ask."""
    return importlib.util.find_spec("math_verify") is not None


def verifies(answer: str, expected: str) -> bool:
    """Whether `math-verify` calls the answers equal. False if it is not installed, fails, or does not answer in time."""
    if not is_installed():
        return False
    helper = _helper()
    assert helper.stdin is not None and helper.stdout is not None
    try:
        helper.stdin.write(json.dumps([answer, expected]) + "\n")
        helper.stdin.flush()
        ready, _, _ = select.select([helper.stdout], [], [], DEADLINE_SECONDS)
        line = helper.stdout.readline() if ready else ""
    except OSError:
        line = ""
    if not line:
        end_helper()
        return False
    return json.loads(line) is True


def end_helper() -> None:
    """End the process that is asked; the next question starts another one."""
    _end(os.getpid())


def _helper() -> subprocess.Popen[str]:
    helper = _helpers.get(os.getpid())
    if helper is None or helper.poll() is not None:
        helper = subprocess.Popen([sys.executable, "-m", _MODULE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        _helpers[os.getpid()] = helper
        atexit.register(_end, os.getpid())
    return helper


def _end(pid: int) -> None:
    helper = _helpers.pop(pid, None) if pid == os.getpid() else None
    if helper is not None:
        helper.kill()
        helper.communicate()


def main() -> None:
    """Answer questions until there are no more."""
    library = importlib.import_module("math_verify")
    for line in sys.stdin:
        answer, expected = json.loads(line)
        try:
            is_equal = bool(library.verify(library.parse(f"\\boxed{{{expected}}}"), library.parse(f"\\boxed{{{answer}}}")))
        except Exception:
            # What it cannot read it does not call equal.
            is_equal = False
        sys.stdout.write(json.dumps(is_equal) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
