"""`python -m penstock`: the command line, and what every child process of a run is started with."""

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    # The directory that one works in. A file there may have the name of a module that we need; `main` puts the directory behind all others.
    del sys.path[0]

from penstock.process.leash import hold

# Before anything that takes time: a parent that is gone by then is noticed all the same.
hold()

from penstock.cli import main  # noqa: E402

if __name__ == "__main__":
    main()
