"""`python -m penstock.inference`: one server process."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

from penstock.errors import ConfigError, PenstockError
from penstock.httpd import Access, read_tokens
from penstock.inference.config import EngineLimits, InferenceConfig


def main(arguments: list[str] | None = None) -> int:
    """Serve until told to stop. 2 for a wrong setting, 1 for anything else that keeps it from serving, each with one line that says what."""
    limits = EngineLimits()
    parser = argparse.ArgumentParser(prog="python -m penstock.inference", description="Serve a model with OpenAI's API.")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--weights-dir", type=Path)
    parser.add_argument("--buffer", default="", help="buffer to ask for the newest version")
    parser.add_argument("--run", default="", help="run whose weights are served")
    parser.add_argument("--policy", default="policy")
    parser.add_argument("--version", type=int, default=0)
    parser.add_argument("--digest", default="")
    parser.add_argument("--on-swap", choices=["recompute", "keep"], default="recompute")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--port-file", type=Path)
    parser.add_argument("--token-file", type=Path, help="holds the token that clients must send")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--max-running", type=int, default=limits.max_running)
    parser.add_argument("--max-queued", type=int, default=limits.max_queued)
    parser.add_argument("--kv-tokens", type=int, default=limits.kv_tokens)
    words = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        config = InferenceConfig(
            model=words.model,
            weights_dir=words.weights_dir,
            buffer_url=words.buffer,
            run=words.run,
            policy=words.policy,
            version=words.version,
            digest=words.digest,
            on_swap=words.on_swap,
            access=Access(host=words.host, tokens=read_tokens(words.token_file, os.environ)),
            port=words.port,
            port_file=words.port_file,
            threads=words.threads,
            limits=EngineLimits(max_running=words.max_running, max_queued=words.max_queued, kv_tokens=words.kv_tokens),
        )
        # Imported only now: a wrong setting is told without waiting for torch.
        from penstock.inference.server import serve

        serve(config)
    except PenstockError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2 if isinstance(error, ConfigError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
