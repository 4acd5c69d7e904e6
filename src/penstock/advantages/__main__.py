"""Prints the table of estimators for docs/algorithms.md: `python -m penstock.advantages`."""

import sys

from penstock.advantages.reference import table

if __name__ == "__main__":
    sys.stdout.write(table())
