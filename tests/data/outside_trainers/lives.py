"""Lives of examples, one after another, each in a process of its own: python lives.py FOLDER LIVES, where LIVES is JSON.

A life is `{"module", "words"}`, and dies by SIGKILL instead of the `count`-th call of `dies_in`, a function of the module. Or it is `{"post", "body"}`, one
request between two lives. What is slow to import is imported once: lives are forks. Prints what lives print, and `ended: STATUS` after each.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import traceback
from typing import Any


def mortal(module: Any, path: str, count: int) -> None:
    """Let the process die where it would call the function at `path` for the `count`-th time."""
    *owners, name = path.split(".")
    owner = module
    for part in owners:
        owner = getattr(owner, part)
    original = getattr(owner, name)
    calls = 0

    def called(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **options)

    setattr(owner, name, called)


def live(life: dict[str, Any]) -> None:
    module = importlib.import_module(life["module"])
    if "dies_in" in life:
        mortal(module, life["dies_in"], life.get("count", 1))
    module.main(life["words"])


def main() -> None:
    folder, lives = sys.argv[1], json.loads(sys.argv[2])
    sys.path.insert(0, folder)
    # transformers imports a model's code when it is first used; that is slow, too.
    for name in {"transformers.models.llama.modeling_llama", *(life["module"] for life in lives if "module" in life)}:
        importlib.import_module(name)
    for life in lives:
        if "post" in life:
            importlib.import_module("leases").ask(life["post"], life["body"])
            continue
        child = os.fork()
        if child == 0:
            status = 1
            try:
                live(life)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(status)
        print("ended:", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
