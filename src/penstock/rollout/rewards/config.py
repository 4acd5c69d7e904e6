"""Settings of a reward function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from penstock.config import check_range
from penstock.errors import ConfigError
from penstock.rollout.config import EnvConfig, is_function_name


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardConfig:
    """Which function gives the rewards, and what it may use."""

    function: str
    """`module:function`, `file.py:function`, or `file.py` with a function `reward`."""
    seconds: float = 10.0
    """A call that takes longer is an infrastructure failure."""
    load_seconds: float = 60.0
    """The same for loading the function."""
    memory_mb: int = 1024
    """Address space of a process that calls it."""
    processes: int = 2
    """That call it at the same time. Calls that only wait for something do not count, up to four times as many."""

    def __post_init__(self) -> None:
        check_range("seconds", self.seconds, above=0)
        check_range("load_seconds", self.load_seconds, above=0)
        check_range("memory_mb", self.memory_mb, least=64)
        check_range("processes", self.processes, least=1)
        if not is_function_name(self.function):
            raise ConfigError(f"function: must be module:function, file.py:function or file.py, got {self.function!r}")

    @classmethod
    def of(cls, env: EnvConfig) -> Self | None:
        """That of an environment; None if it gives its rewards itself."""
        if env.reward is None:
            return None
        return cls(function=env.reward, seconds=env.reward_seconds, memory_mb=env.reward_memory_mb, processes=env.reward_processes)
