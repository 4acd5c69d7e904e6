"""A run as a whole: its config, its directory, its processes, and what came of it.

- `config`: `RunConfig`, composed of the sections of all parts. `sections`: those that belong to the run. `identity`: what may not change on resume.
- `plan`: which processes a config means, and with which words they are started. `parts`: what each of them is told.
- `training`: starts, watches and ends them. `watch` and `stalls`: who waits for what. `evaluation`: held-out children.
- `rundir`, `state`, `summary`: the files of a run.
"""
