"""What a reward function says about an episode, read strictly: anything that is no finite number is a failure of the function, never a reward."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from penstock.errors import InfraError, InputError
from penstock.types import Json, Message, Problem, Rollout
from penstock.wire import check_id

_KEYS = frozenset({"total", "parts", "step_outputs"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The rewards of one episode."""

    total: float
    parts: Mapping[str, float] = field(default_factory=dict)
    """By name."""
    steps: Mapping[int, float] = field(default_factory=dict)
    """Rewards of single steps, by index of the step; they replace those of the environment."""


class Judge(Protocol):
    """Whoever gives rewards in place of the environment."""

    async def judge(self, messages: Sequence[Message], problem: Problem, rollout: Rollout) -> Judgement:
        """The rewards of an episode that has ended. Raises `InfraError` if there are none."""


def read_judgement(value: Json) -> Judgement:
    """What a reward function returned: a number, or an object with `total`, `parts` and `step_outputs`, of which at least one of the first two is there.

    `step_outputs` is a list of `{"step_index": 0, "base_reward": 0.5}`. Without `total` it is the sum of the parts. Raises `InfraError`.

    >>> read_judgement({"parts": {"right": 1.0, "short": 0.25}})
    Judgement(total=1.25, parts={'right': 1.0, 'short': 0.25}, steps={})
    >>> read_judgement(float("nan"))
    Traceback (most recent call last):
    penstock.errors.InfraError: the reward must be a finite number, got nan
    """
    if not isinstance(value, Mapping):
        total = _number(value, "the reward")
        return Judgement(total=total, parts={"reward": total})
    unknown = value.keys() - _KEYS
    if unknown:
        raise InfraError(f"a reward has no {sorted(map(str, unknown))[0]!r:.80}; it has {', '.join(sorted(_KEYS))}")
    parts = {} if value.get("parts") is None else _parts(value["parts"])
    if value.get("total") is not None:
        total = _number(value["total"], "total")
        return Judgement(total=total, parts=parts or {"reward": total}, steps=_steps(value.get("step_outputs")))
    return replace(sum_of(parts), steps=_steps(value.get("step_outputs")))


def sum_of(parts: Json) -> Judgement:
    """Named parts, of which the sum is the reward. Raises `InfraError` unless they are one finite number or more."""
    checked = _parts(parts)
    if not checked:
        raise InfraError("a reward needs one named number or more")
    try:
        return Judgement(total=math.fsum(checked.values()), parts=checked)
    except OverflowError:
        raise InfraError(f"the parts of a reward add up to more than a number can be: {checked!r:.80}") from None


def _parts(value: Json) -> dict[str, float]:
    if not isinstance(value, Mapping):
        raise InfraError(f"parts of a reward must be numbers by name, got {value!r:.80}")
    for name in value:
        try:
            check_id(name, "the name of a part")
        except InputError as error:
            raise InfraError(str(error)) from None
    return {name: _number(part, f"parts[{name!r}]") for name, part in value.items()}


def _steps(value: Json) -> dict[int, float]:
    if value is None:
        return {}
    if not isinstance(value, list):
        raise InfraError(f"step_outputs must be a list, got {value!r:.80}")
    steps: dict[int, float] = {}
    for output in value:
        index = output.get("step_index") if isinstance(output, Mapping) else None
        if isinstance(index, bool) or not isinstance(index, int) or index < 0 or index in steps:
            raise InfraError(f"step_outputs must be objects with a step_index of their own, got {output!r:.80}")
        steps[index] = _number(output.get("base_reward"), f"base_reward of step {index}")
    return steps


def _number(value: Json, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InfraError(f"{name} must be a finite number, got {value!r:.80}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InfraError(f"{name} must be a finite number, got {value!r:.80}")
    return number
