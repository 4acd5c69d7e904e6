"""Reward functions as users write them, good and bad. Called in processes of their own."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

Messages = list[dict[str, Any]]


def exact(messages: Messages, ground_truth: Any, **_: Any) -> float:
    return 1.0 if messages[-1]["content"] == ground_truth else 0.0


def modest(messages: Messages, ground_truth: Any) -> float:
    return exact(messages, ground_truth)


def choosy(messages: Messages, truth: Any, problem_id: str, *, weight: float = 0.5) -> float:
    return weight if problem_id == "p" and truth == "42" else 0.0


def narrow(messages: Messages) -> float:
    return 1.0


def greedy(messages: Messages, ground_truth: Any, temperature: float) -> float:
    return 1.0


async def asynchronous(messages: Messages, ground_truth: Any, **_: Any) -> float:
    return 0.5


def detailed(messages: Messages, ground_truth: Any, *, num_steps: int, status: str, **_: Any) -> dict[str, Any]:
    assert status == "ok"
    outputs = [{"step_index": index, "base_reward": index / 10} for index in range(num_steps)]
    return {"total": 0.75, "parts": {"right": 1.0, "long": -0.25}, "step_outputs": outputs}


def judging_a_step_that_is_not(messages: Messages, ground_truth: Any, **_: Any) -> dict[str, Any]:
    return {"total": 1.0, "step_outputs": [{"step_index": 99, "base_reward": 1.0}]}


def by_command(messages: Messages, ground_truth: Any, **_: Any) -> Any:
    """Does what the last message says."""
    command, *words = messages[-1]["content"].split()
    return COMMANDS[command](*words)


def loop() -> None:
    while True:
        pass


def fork_and_wait() -> None:
    for _ in range(8):
        if os.fork() == 0:
            time.sleep(600)
    time.sleep(600)


def flood() -> float:
    sys.stdout.write("x" * (1 << 20))
    sys.stderr.write("x" * (1 << 20))
    os.write(1, b"y" * (1 << 20))
    return 1.0


def leave_a_child() -> float:
    return float(subprocess.Popen(["sleep", "600"]).pid)


def read_stdin() -> float:
    return float(len(sys.stdin.read()))


def connect(port: str) -> float:
    with socket.create_connection(("127.0.0.1", int(port)), timeout=10.0):
        return 1.0


def write(path: str) -> float:
    return float(Path(path).write_text("x"))


def make_writable_and_write(path: str) -> float:
    libc = ctypes.CDLL(None, use_errno=True)
    attributes = struct.pack("QQQQ", 0, 1, 0, 0)  # a mount that is read-only no more
    libc.syscall(ctypes.c_long(442), ctypes.c_long(-100), b"/", ctypes.c_long(0x8000), attributes, ctypes.c_size_t(len(attributes)))
    return write(path)


def use_a_lock() -> float:
    with multiprocessing.Lock():
        return 1.0


def use_a_temporary_file() -> float:
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "answer").write_text("1.0")
        return float(Path(directory, "answer").read_text())


def environment() -> float:
    return float(any("SECRET" in name for name in os.environ))


def raising() -> float:
    raise KeyError("no such answer")


COMMANDS: dict[str, Any] = {
    "one": lambda: 1.0,
    "pid": lambda: float(os.getpid()),
    "nan": lambda: float("nan"),
    "infinity": lambda: float("inf"),
    "none": lambda: None,
    "text": lambda: "1.0",
    "true": lambda: True,
    "list": lambda: [1.0],
    "object": object,
    "big": lambda: {"parts": {f"p{index}": 1.0 for index in range(200_000)}},
    "unknown": lambda: {"total": 1.0, "reason": "fine"},
    "raise": raising,
    "exit": lambda: sys.exit(0),
    "die": lambda: os._exit(0),
    "abort": os.abort,
    "hang": lambda: time.sleep(600),
    "loop": loop,
    "fork": fork_and_wait,
    "allocate": lambda: float(len(bytearray(1 << 33))),
    "flood": flood,
    "child": leave_a_child,
    "stdin": read_stdin,
    "connect": connect,
    "write": write,
    "remount": make_writable_and_write,
    "lock": use_a_lock,
    "temporary": use_a_temporary_file,
    "secret": environment,
    "processes": lambda: float(len([path for path in Path("/proc").iterdir() if path.name.isdecimal()])),
}
