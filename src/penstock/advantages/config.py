"""Sections of the config that belong to one estimator (`algorithm.gigpo`, `algorithm.rlvcr`)."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from penstock.advantages.state_hashing import hash_concatenated_content, hash_last_messages, hash_structured
from penstock.config import check_range
from penstock.errors import ConfigError

Norm = Literal["mean_norm", "mean_std_norm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GigpoConfig:
    """How `gigpo` compares episodes and steps (`algorithm.gigpo`)."""

    gamma: float = 0.95
    """Discount of what a step brings later."""
    norm: Norm = "mean_norm"
    """Whether both parts are also divided by their spread."""
    combine: Literal["additive", "omega"] = "additive"
    """A_E + w * A_S, or omega * A_E + (1 - omega) * A_S."""
    w: float = 1.0
    """Weight of the step part in `additive`."""
    omega: float = 0.5
    """Share of the episode part in `omega`."""
    stats_over: Literal["trajectories", "steps"] = "trajectories"
    """Whether an episode counts once in the statistics of its group, or once for each of its steps."""
    singleton: Literal["zero", "raw"] = "zero"
    """Episode part of a group of one: 0, or its reward."""
    similarity: float | None = None
    """States whose texts are at least so similar count as the same (0.95, say); null: only equal ones."""
    default_step_reward: float = 0.0
    """Reward of a step that the environment did not reward. The last step of an episode then also gets the episode's reward."""
    state_hashing_function: str = "observation"
    """What makes two states the same: `observation` (the environment's bare observation; a step without one is not compared), or a function of what the
    policy saw: `concatenated_content`, `last_messages`, `structured`, `module:function`."""
    last_messages: int = 1
    """Messages that `last_messages` looks at."""
    state_keys: tuple[str, ...] = ()
    """Keys of a dict that `structured` looks at; none: all of them."""

    def __post_init__(self) -> None:
        check_range("gamma", self.gamma, least=0, most=1)
        check_range("omega", self.omega, least=0, most=1)
        check_range("similarity", self.similarity, least=0, most=1)
        check_range("last_messages", self.last_messages, least=1)
        self.state_hash()

    def options(self) -> dict[str, Any]:
        """Keyword options of `gigpo`."""
        names = ("gamma", "norm", "combine", "w", "omega", "stats_over", "singleton", "similarity")
        return {name: getattr(self, name) for name in names}

    def state_hash(self) -> Callable[[Any], Any] | None:
        """The function from `StepData.observation_data` to an anchor; None: the environment's own observation is the anchor."""
        match self.state_hashing_function:
            case "observation":
                return None
            case "concatenated_content":
                return hash_concatenated_content
            case "last_messages":
                return hash_last_messages(self.last_messages)
            case "structured":
                return hash_structured(self.state_keys or None)
            case name:
                return _imported(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class RlvcrConfig:
    """How `rlvcr` weighs thinking levels (`algorithm.rlvcr`)."""

    enable: bool = True
    """Whether the thinking part counts at all; without it the estimator gives each step the credit of its episode."""
    step_advantage_w: float = 1.0
    """Weight of the thinking part beside the episode's."""
    thinking_diversity_w: float = 0.5
    """How much less a level earns, the more usual it is in the batch; 0: it does not matter."""
    mode: Norm = "mean_norm"
    """Whether both parts are also divided by their spread."""
    signal: Literal["confidence", "neg_entropy"] = "confidence"
    """What a level is good for: a likely action, or a distribution of actions with little entropy."""
    thinking_cost_alpha: float = 0.0
    """Price of thinking: a level without any earns half of this, one of `cost_max` tokens or more loses half of it."""
    cost_max: float = 250.0
    """Thinking tokens beyond which more cost nothing more."""

    def __post_init__(self) -> None:
        check_range("thinking_diversity_w", self.thinking_diversity_w, least=0, most=1)
        check_range("cost_max", self.cost_max, above=0)

    def options(self) -> dict[str, Any]:
        """Keyword options of `rlvcr`."""
        names = ("thinking_diversity_w", "mode", "signal", "thinking_cost_alpha", "cost_max")
        return {"step_advantage_w": self.step_advantage_w if self.enable else 0.0, **{name: getattr(self, name) for name in names}}


def _imported(name: str) -> Callable[[Any], Any]:
    module_name, colon, attribute = name.partition(":")
    if not colon:
        known = "observation, concatenated_content, last_messages, structured or module:function"
        raise ConfigError(f"state_hashing_function: must be {known}, got {name!r}")
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except Exception as error:  # whatever a user's own module does when it is imported
        raise ConfigError(f"state_hashing_function: {name!r} cannot be imported ({type(error).__name__}: {error})") from None
    if not callable(found):
        raise ConfigError(f"state_hashing_function: {name!r} is {found!r}, which cannot be called")
    function: Callable[[Any], Any] = found
    return function
