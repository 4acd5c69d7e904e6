"""The program in which a user's reward function runs. Started by its path, without the rest of penstock, so that it is there at once.

On stdin and stdout: frames of four bytes of length and JSON. First what to load and what it may use, answered by `{"ready": true, "writes": ...}` (whether it
could write files) or `{"failed": ...}`; then one question after another, each answered by a value or what failed. What the function prints goes nowhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib
import importlib.util
import inspect
import json
import os
import resource
import signal
import struct
import sys
import traceback
from pathlib import Path
from typing import Any, BinaryIO

LONGEST_ANSWER_BYTES = 1 << 20
FACTS = frozenset({"problem_id", "environment", "task", "status", "num_steps"})
"""What a function may ask for beside messages and ground truth, by the names of its parameters."""
_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 24, 36, 38
_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE, _MOUNT_ATTR_RDONLY = 442, -100, 0x8000, 1
_CAPABILITY_VERSION, _NUM_CAPABILITIES = 0x20080522, 64
_OWN_FILES = "/dev/shm"
"""Where a process that is kept in may write: in memory, for itself alone. Locks and queues of `multiprocessing` live there, too."""
_MOST_ROUNDS = 100


def main() -> None:
    """Answer questions until there are no more."""
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    hello = _read(questions)
    if hello is None:
        return
    _confine(hello)
    writes = not os.statvfs("/").f_flag & os.ST_RDONLY
    if not writes and os.access(_OWN_FILES, os.W_OK):
        os.environ["TMPDIR"] = _OWN_FILES
    try:
        function = _load(hello["function"], hello["path"])
    except BaseException as error:
        _write(answers, {"failed": _sentence(error)})
        return
    _write(answers, {"ready": True, "writes": writes})
    while (question := _read(questions)) is not None:
        answer = _answered(function, question)
        _write(answers, answer)
        if not answer["is_sound"]:
            return
        _end_children()


def _confine(hello: dict[str, Any]) -> None:
    """Take little, leave nothing behind, and end with the parent."""
    parent = os.environ.pop("PENSTOCK_PARENT", None)
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if hello["mounts"] not in ("", str(Path("/proc/self/ns/mnt").readlink())):  # those of the parent are left alone
            _let_nothing_be_written(libc)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if hello["checks_parent"] and parent is not None and os.getppid() != int(parent):
        os._exit(1)
    limits = {"RLIMIT_AS": hello["memory_bytes"], "RLIMIT_DATA": hello["memory_bytes"], "RLIMIT_CORE": 0, "RLIMIT_FSIZE": hello["file_bytes"]}
    for name, value in limits.items():
        with contextlib.suppress(ValueError, OSError, AttributeError):  # not every system has every limit, and none can be raised
            resource.setrlimit(getattr(resource, name), (value, value))


def _let_nothing_be_written(libc: ctypes.CDLL) -> None:
    """For a process whose mounts are its own: files can only be read, but for temporary ones of its own, and it gives up the power to change that.

    Where the kernel does not know the call (Linux before 5.12), or bubblewrap was there before, nothing happens to the mounts.
    """
    read_only = struct.pack("QQQQ", _MOUNT_ATTR_RDONLY, 0, 0, 0)
    size = ctypes.c_size_t(len(read_only))
    if libc.syscall(ctypes.c_long(_MOUNT_SETATTR), ctypes.c_long(_AT_FDCWD), b"/", ctypes.c_long(_AT_RECURSIVE), read_only, size) == 0:
        libc.mount(b"tmpfs", _OWN_FILES.encode(), b"tmpfs", ctypes.c_ulong(0), b"size=64m")
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    for capability in range(_NUM_CAPABILITIES):
        libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    libc.capset(struct.pack("Ii", _CAPABILITY_VERSION, 0), bytes(24))


def _load(target: str, path: list[str]) -> Any:
    sys.path[:] = [*path, *(entry for entry in sys.path if entry not in path)]
    where, _, name = target.rpartition(":") if ":" in target else (target, ":", "reward")
    if where.endswith(".py"):
        spec = importlib.util.spec_from_file_location("reward_function", where)
        if spec is None or spec.loader is None:
            raise ImportError(f"{where} is not a Python file")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(where)
    function = getattr(module, name)
    if not callable(function):
        raise TypeError(f"{name} is {type(function).__name__} and cannot be called")
    return _taking_what_it_names(function, name)


def _taking_what_it_names(function: Any, name: str) -> Any:
    """The function, called with those of the facts that it has parameters for."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # not written in Python
        return function
    parameters = signature.parameters.values()
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    named = {parameter.name for parameter in parameters if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)}
    known = dict.fromkeys(FACTS if takes_all else named & FACTS)
    try:
        signature.bind([], None, **known)
    except TypeError as error:
        raise TypeError(f"{name}{signature} cannot be called with messages, ground_truth and any of {', '.join(sorted(FACTS))}: {error}") from None
    return lambda messages, ground_truth, **facts: function(messages, ground_truth, **(facts if takes_all else {key: facts[key] for key in known}))


def _answered(function: Any, question: dict[str, Any]) -> dict[str, Any]:
    """The answer; `is_sound` says whether this process can be trusted with another question."""
    try:
        value = function(question["messages"], question["ground_truth"], **question["facts"])
        if inspect.isawaitable(value):
            value = asyncio.run(_awaited(value))
        if len(json.dumps(value, default=_plain)) > LONGEST_ANSWER_BYTES:
            raise ValueError(f"returned more than {LONGEST_ANSWER_BYTES} bytes")
        return {"value": value, "is_sound": True}
    except BaseException as error:  # the process is there to be broken
        return {"failed": _sentence(error), "is_sound": isinstance(error, Exception) and not isinstance(error, MemoryError)}


async def _awaited(value: Any) -> Any:
    return await value


def _plain(value: Any) -> Any:
    """Numbers of numpy and the like as Python's own."""
    if hasattr(value, "item") and getattr(value, "size", 1) == 1:
        return value.item()
    raise TypeError(f"returned a value of type {type(value).__name__}")


def _sentence(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename != __file__]
    place = f" (line {own[-1].lineno} of {Path(own[-1].filename).name})" if own else ""
    return f"{type(error).__name__}: {error}{place}"[:500]


def _end_children() -> None:
    """End what the function has started and left behind."""
    for _ in range(_MOST_ROUNDS):
        children = [int(pid) for path in Path("/proc/self/task").glob("*/children") for pid in _text(path).split()]
        for pid in children:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not children:
            return


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # the thread has ended meanwhile
        return ""


def _read(questions: BinaryIO) -> dict[str, Any] | None:
    header = questions.read(4)
    if len(header) < 4:
        return None
    value: dict[str, Any] = json.loads(questions.read(struct.unpack(">I", header)[0]))
    return value


def _write(answers: BinaryIO, value: dict[str, Any]) -> None:
    body = json.dumps(value, default=_plain).encode("utf-8", "replace")
    answers.write(struct.pack(">I", len(body)) + body)
    answers.flush()


if __name__ == "__main__":
    main()
