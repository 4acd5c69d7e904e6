"""Generators: files that make rollouts, found by their name, run in processes of their own.

- `discovery`: which files are generators, found out without running them.
- `payload`: what `/start_rollout` is told, checked.
- `frames`: what a server and a generator's process say to each other. `child`: the other end, which alone runs a generator's code.
- `running`: `Generators`, which starts, watches and stops them. `hooks`: `GeneratorHooks`, a generator's own five functions.
- `routes`: what is served about them.
"""

from penstock.buffer.compat.generators.hooks import GeneratorHooks
from penstock.buffer.compat.generators.running import Generators, GeneratorsConfig, GeneratorState, RolloutState

__all__ = ["GeneratorHooks", "GeneratorState", "Generators", "GeneratorsConfig", "RolloutState"]
