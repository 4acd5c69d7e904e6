"""Generators: files that make rollouts, found by their name, run in processes of their own.

- `discovery`: which files are generators, found out without running them. `describing`: the same for those whose text does not tell.
- `payload`: what `/start_rollout` is told, checked.
- `frames`: what a server and a generator's process say to each other. `child`: the other end, which alone runs a generator's code.
- `processes`: how one is started. `lives`: how it stands, from its start to its end.
- `running`: `Generators`, which finds, starts and stops them. `hooks`: `GeneratorHooks`, a generator's own five functions.
- `routes`: what is served about them.

This file imports nothing, because a generator's process comes through here on its way to `child`.

A service makes one `Generators` in its event loop, gives it the ids that its store has finished, and closes it in the end:

    generators = Generators(GeneratorsConfig(directory=buffer_directory, folders=folders, data_root=data_root), compat.finished_ids)
    app = buffer_routes(service, *generator_routes(generators))
    try:
        ...
    finally:
        await generators.close()
"""
