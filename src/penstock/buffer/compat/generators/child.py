"""A generator's own process: the only place where its code runs.

    python -m penstock.buffer.compat.generators.child rollout|hooks|describe FD

The first frame on the socket FD says which file and which folders. Then, by the first word:

- `rollout`: `run_rollout(payload)` is called; the exit code says how it ended, a frame says why.
- `hooks`: each frame is a call of one of the five functions, and is answered with one.
- `describe`: one frame says what the file defines.

When the other end of the socket closes, because the server stopped or was killed, or when this process ends, its whole process group is killed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from penstock.buffer.compat.generators.frames import BlockingFrames
from penstock.buffer.compat.hooks import HOOK_NAMES
from penstock.buffer.compat.shim.generator._folders import VARIABLE as FOLDERS_VARIABLE
from penstock.process.leash import VARIABLE as PARENT_VARIABLE

_SHIM = Path(__file__).parent.parent / "shim"
_WATCH_MILLISECONDS = 200
"""The socket wakes its watcher at once; the end of the process it finds out by asking."""
_ORIGINAL_PACKAGES = ("slime_plugins", "slime_plugins.rollout_buffer")
"""Generators of the original may import `slime_plugins.rollout_buffer.generator`, too."""
_TALKATIVE = ("httpx", "httpx2")
"""The client of `openai` tells of every single request, among which a generator's own words would be lost."""


def main(words: Sequence[str]) -> None:
    """See the module's docstring."""
    mode, descriptor = words
    # What this process starts has another parent, and no business with the socket.
    os.environ.pop(PARENT_VARIABLE, None)
    os.set_inheritable(int(descriptor), False)
    connection = socket.socket(fileno=int(descriptor))
    frames = BlockingFrames(connection)
    order = frames.receive()
    _die_with(connection)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        module = load(Path(order["file"]), [Path(folder) for folder in order["folders"]])
        {"rollout": _rollout, "hooks": _hooks, "describe": _describe}[mode](frames, module, order)
    except BaseException as error:
        if isinstance(error, SystemExit) and error.code in (None, 0):
            return
        traceback.print_exc()
        with contextlib.suppress(OSError):
            frames.send({"failed": _sentence(error)})
        sys.stdout.flush()
        # At once: an orderly exit would wait for processes that the generator has started, and they may wait for it.
        os._exit(error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1)


def load(path: Path, folders: Sequence[Path]) -> ModuleType:
    """Run a generator file as a module of the package `generator`, with the names around it that it may import."""
    os.environ[FOLDERS_VARIABLE] = os.pathsep.join(str(folder) for folder in folders)
    sys.path.insert(0, str(_SHIM))
    sys.path += [str(folder.parent) for folder in folders] + [str(_SHIM / "fallback")]
    package = importlib.import_module("generator")
    if importlib.util.find_spec(_ORIGINAL_PACKAGES[0]) is None:
        for name in _ORIGINAL_PACKAGES:
            sys.modules[name] = ModuleType(name)
            sys.modules[name].__path__ = []
        alias = ModuleType(".".join([*_ORIGINAL_PACKAGES[1:], "generator"]))
        alias.__path__ = package.__path__
        sys.modules[alias.__name__] = alias
    spec = importlib.util.spec_from_file_location(f"generator.{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _rollout(frames: BlockingFrames, module: ModuleType, order: dict[str, Any]) -> None:
    payload = order["payload"]
    payload["skip_instance_ids"] = as_in_file(payload["skip_instance_ids"], payload.get("input_file"))
    frames.send({"state": "running"})
    module.run_rollout(payload)


def as_in_file(ids: Sequence[str | int], input_file: str | None) -> list[str | int]:
    """Instance ids as the input file has them: the store knows them as texts, a generator compares them with what it reads.

    Lines without an id have their number, from 0. A file that is no JSON lines leaves them as they are.
    """
    if not ids or not input_file:
        return list(ids)
    by_text: dict[str, str | int] = {}
    try:
        with Path(input_file).open(encoding="utf-8") as file:
            for number, line in enumerate(file):
                id = json.loads(line).get("instance_id", number) if line.strip() else number
                by_text.setdefault(str(id), id)
    except (OSError, ValueError, AttributeError):
        return list(ids)
    return [by_text.get(str(id), id) for id in ids]


def _describe(frames: BlockingFrames, module: ModuleType, order: dict[str, Any]) -> None:
    task_type = getattr(module, "TASK_TYPE", None)
    known = [name for name in ("TASK_TYPE", "run_rollout", *HOOK_NAMES) if hasattr(module, name)]
    frames.send({"task_type": task_type if isinstance(task_type, str) else None, "names": known})


def _hooks(frames: BlockingFrames, module: ModuleType, order: dict[str, Any]) -> None:
    frames.send({"ready": [name for name in HOOK_NAMES if hasattr(module, name)]})
    while True:
        try:
            call = frames.receive()
        except EOFError:
            return
        data = _streamed(frames) if call["hook"] == "get_group_data_meta_info" else tuple(call["group"])
        try:
            answer = {"answer": _called(getattr(module, call["hook"]), call, data)}
            frames.send(answer)
        except Exception as error:
            # Whatever a generator's function does is told, and the next call is served.
            traceback.print_exc()
            frames.send({"error": _sentence(error)})


def _streamed(frames: BlockingFrames) -> dict[str, list[Any]]:
    """Groups until there are no more, those of one instance together."""
    data: dict[str, list[Any]] = {}
    while (group := frames.receive()) is not None:
        data.setdefault(group[0], []).extend(group[1])
    return data


def _called(function: Any, call: dict[str, Any], data: Any) -> Any:
    """A function with the very arguments that the original gives it."""
    match call["hook"]:
        case "filter_item":
            return [bool(function(item, call["task_type"])) for item in data[1]]
        case "is_valid_group":
            return function(data, call["min_valid_group_size"], call["task_type"])
        case "pad_group_data":
            return function(data, call["group_size"])
        case _:
            return function(data)


def _die_with(connection: socket.socket) -> None:
    """Leave a process behind that kills this group when the server's end of the socket closes, or this process ends. Not a thread: generators fork."""
    parent = os.getpid()
    if os.fork() != 0:
        return
    try:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        watch = select.poll()
        watch.register(connection, 0)
        while not watch.poll(_WATCH_MILLISECONDS) and os.getppid() == parent:
            pass
    finally:
        os.killpg(0, signal.SIGKILL)


def _sentence(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:2000] if str(error) else type(error).__name__


if __name__ == "__main__":
    main(sys.argv[1:])
