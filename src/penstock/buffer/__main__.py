"""`python -m penstock.buffer --dir DIR`: the buffer's process without the command line of penstock."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import fields
from pathlib import Path

from penstock.buffer.compat.config import CompatConfig
from penstock.buffer.config import BufferConfig
from penstock.buffer.serving import serve_buffer
from penstock.errors import PenstockError
from penstock.httpd import Access, read_tokens


def main() -> None:
    """Parse arguments and serve."""
    parser = argparse.ArgumentParser(prog="penstock.buffer", description="Serve a durable rollout buffer.")
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--port", type=int, default=8889)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--token-file", type=Path)
    parser.add_argument("--port-file", type=Path)
    defaults = CompatConfig()
    names = [field.name for field in fields(defaults)]
    for name in names:
        default = getattr(defaults, name)
        parser.add_argument(f"--{name.replace('_', '-')}", type=int if default is None else type(default), default=default)
    options = parser.parse_args()
    try:
        access = Access(host=options.host, tokens=read_tokens(options.token_file, os.environ))
        compat = CompatConfig(**{name: getattr(options, name) for name in names})
        serve_buffer(BufferConfig(directory=options.dir, port=options.port, access=access, port_file=options.port_file, compat=compat))
    except PenstockError as error:
        sys.exit(f"penstock buffer: {error}")


if __name__ == "__main__":
    main()
