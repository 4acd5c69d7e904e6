"""Processes that run code nobody vouches for: no secrets in their environment, no network where the system allows, a session of their own, on a leash.

What they may use of memory, and that they write nothing where their mounts are their own, is for the program to see to before it loads that code; what they
may use of time is for the parent to watch: `Child.kill` ends everything in the session.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from pathlib import Path

from penstock.process.child import Child
from penstock.process.leash import leashed

_KEPT_VARIABLES = ("PATH", "LANG", "LC_ALL", "TZ", "TMPDIR", "SYSTEMROOT")
"""All that a confined process knows of this one's environment: nothing that could be a secret."""
_PROBE_SECONDS = 10.0


class Confinement(StrEnum):
    """What keeps a process in."""

    BUBBLEWRAP = "bubblewrap"
    """No network, nothing can be written, other processes cannot be seen."""
    UNSHARE = "unshare"
    """No network, mounts of its own, other processes cannot be seen."""
    NO_NETWORK = "unshare --net"
    """No network, and mounts of its own where the system allows that."""
    NONE = "rlimits"
    """Only limits on what it may use."""

    @property
    def hides_processes(self) -> bool:
        """Whether processes outside cannot be seen from inside: neither signalled nor asked for their environment. Numbers inside are others than outside."""
        return self in (Confinement.BUBBLEWRAP, Confinement.UNSHARE)


_WRAPPERS: Mapping[Confinement, tuple[tuple[str, ...], ...]] = {
    Confinement.BUBBLEWRAP: (
        ("bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--unshare-net", "--unshare-pid", "--unshare-ipc", "--die-with-parent", "--"),
    ),
    # As root a namespace of users is not needed, and some systems refuse it.
    Confinement.UNSHARE: tuple(
        ("setpriv", "--pdeathsig", "KILL", "unshare", *words, "--net", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc", "--")
        for words in ((), ("--map-root-user",))
    ),
    Confinement.NO_NETWORK: tuple(("unshare", "--net", *words, "--") for words in (("--mount",), ("--mount", "--map-root-user"), (), ("--map-root-user",))),
}


@lru_cache(maxsize=1)
def confinement() -> tuple[Confinement, tuple[str, ...]]:
    """The strongest confinement that this system has, found by trying, and the words that go before a command."""
    for kind, wrappers in _WRAPPERS.items():
        for words in wrappers:
            if shutil.which(words[0]) is not None and _works(words):
                return kind, words
    return Confinement.NONE, ()


async def start_confined(words: Sequence[str]) -> tuple[Child, asyncio.StreamWriter, asyncio.StreamReader]:
    """Start a command with pipes to its stdin and from its stdout; its stderr is dropped. Raises `OSError` if it cannot be started."""
    _, wrapper = await asyncio.to_thread(confinement)
    process = await asyncio.create_subprocess_exec(
        *wrapper,
        *words,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={**clean_environment(os.environ), **leashed()},
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    return Child(process), process.stdin, process.stdout


def own_mounts() -> str:
    """Names the mounts that this process sees; a process that sees the same ones must leave them alone. Empty where the system has no such name."""
    try:
        return str(Path("/proc/self/ns/mnt").readlink())
    except OSError:
        return ""


def set_niceness(child: Child, nice: int) -> None:
    """Say how far a confined process, with all that it will start, stands back when others want to compute: 0 to 19.

    Linux may share the processor between sessions first and heed processes only inside of one, so both are told.
    """
    pid = child.id.pid
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PGRP, pid, nice)
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(nice))


def clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What is left of an environment for code that must not learn secrets.

    >>> clean_environment({"PATH": "/bin", "OPENAI_API_KEY": "sk-1"})
    {'PATH': '/bin'}
    """
    return {name: environment[name] for name in _KEPT_VARIABLES if name in environment}


def _works(wrapper: Sequence[str]) -> bool:
    try:
        tried = subprocess.run([*wrapper, "true"], stdin=subprocess.DEVNULL, capture_output=True, timeout=_PROBE_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return tried.returncode == 0
