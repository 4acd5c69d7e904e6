"""What people see of a run: a live view in the terminal, sentences where there is none, and a page of pictures afterwards.

- `following`: the lines of a metrics file as they come. `history`: those lines as curves and facts. Both know nothing of processes.
- `snapshot`: all that a view shows at one moment. `screen` draws it, `sentences` tells what has changed since the last one.
- `asking`: gets the rest of a snapshot from the run's own servers. `replies`: one reply, with the version of each token.
- `charts`, `report`: `report.html`, self-contained.
"""
