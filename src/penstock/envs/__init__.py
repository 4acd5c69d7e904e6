"""Environments: what an agent acts in, and who says how well it did.

- `Env`: one episode. `Environment`: knows its problems and makes an `Env` for each episode.
- `environment(kind, params)`: a built-in one, one that an installed package offers (entry point `penstock.envs`), or `module:Class`.
- `SortEnvironment`, `GuessEnvironment`, `TextWorldEnvironment`: built in. `Delayed`: any of them, slower, for benchmarks.
- `ToolEnv`, `Tool`: functions that an agent may call, as an environment.
- `demonstrations`: prompts and replies as tokens, for a supervised warm-up.
"""

from penstock.envs.delayed import Delayed
from penstock.envs.demonstrations import tokenized, tokenized_turns
from penstock.envs.guess import GuessEnvironment
from penstock.envs.protocol import Env, Environment, Observation, Reply, Rewards
from penstock.envs.registry import ENTRY_POINTS, ENVIRONMENTS, environment
from penstock.envs.sort import SortEnvironment
from penstock.envs.textworld import TextWorldEnvironment
from penstock.envs.tools import Tool, ToolEnv

__all__ = [
    "ENTRY_POINTS",
    "ENVIRONMENTS",
    "Delayed",
    "Env",
    "Environment",
    "GuessEnvironment",
    "Observation",
    "Reply",
    "Rewards",
    "SortEnvironment",
    "TextWorldEnvironment",
    "Tool",
    "ToolEnv",
    "environment",
    "tokenized",
    "tokenized_turns",
]
