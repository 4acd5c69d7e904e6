"""`python -m penstock`: the command line, and what every child process of a run is started with."""

from penstock.process.leash import hold

# Before anything that takes time: a parent that is gone by then is noticed all the same.
hold()

from penstock.cli import main  # noqa: E402

if __name__ == "__main__":
    main()
