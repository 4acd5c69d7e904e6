"""The command line: `penstock <verb>`.

One file for each group of verbs. A verb imports what it runs when it runs, so that `penstock --help` needs no torch and takes no time.
"""

from penstock.cli.main import main

__all__ = ["main"]
