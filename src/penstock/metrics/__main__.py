"""Prints the text of `docs/metrics.md`."""

import sys

from penstock.metrics import reference

if __name__ == "__main__":
    sys.stdout.write(reference())
