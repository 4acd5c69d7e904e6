"""Prints the reference page of config classes: `python -m penstock.config MODULE:CLASS ...`."""

import importlib
import sys

from penstock.config import page


def main(words: list[str]) -> None:
    """Print the page for `MODULE:CLASS` words."""
    if not words or not all(word.count(":") == 1 for word in words):
        raise SystemExit("usage: python -m penstock.config MODULE:CLASS ...")
    sys.stdout.write(page([getattr(importlib.import_module(module), name) for module, name in (word.split(":") for word in words)]))


if __name__ == "__main__":
    main(sys.argv[1:])
