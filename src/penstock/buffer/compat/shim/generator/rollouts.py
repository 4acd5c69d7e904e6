"""From a line of the input file to an item for the buffer."""

from __future__ import annotations

import json
import math
import time
import traceback
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .querying import Conversation

FAILED_REWARD = -1
"""Marks a rollout that failed. The buffer stores and counts it and never trains on it."""

RolloutFunction = Callable[..., Any]
"""`rollout_func(client, prompt, sampling_params)` gives messages, or messages and the reason why the reply ended."""
RewardFunction = Callable[[dict[str, Any]], Any]
"""`reward_func(item)` gives a number; `item` has `messages` and all that the line of the input file has."""


def read_problems(input_file: str | Path) -> list[dict[str, Any]]:
    """The lines of a JSON-lines file. One without an `instance_id` gets its line number, from 0; a prompt that is a text becomes a user's message."""
    problems = []
    with Path(input_file).open(encoding="utf-8") as file:
        for number, line in enumerate(file):
            if not line.strip():
                continue
            try:
                problem = json.loads(line)
                prompt = problem["prompt"]
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"line {number + 1} of the input file must be a JSON object with a prompt: {type(error).__name__}: {error}") from None
            problem.setdefault("instance_id", number)
            problem["prompt"] = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
            problems.append(problem)
    return problems


def rolled_out(
    problem: dict[str, Any], *, rollout_func: RolloutFunction, reward_func: RewardFunction, client: Any, sampling_params: Mapping[str, Any]
) -> dict[str, Any]:
    """The item of one rollout. Whatever goes wrong on the way makes it a failed one, never a reward."""
    try:
        result = rollout_func(client, [dict(message) for message in problem["prompt"]], dict(sampling_params))
        messages, finish_reason = result if isinstance(result, tuple) else (result, getattr(result, "finish_reason", None))
        reward = _number(reward_func({**problem, "messages": messages}))
        facts = messages.facts if isinstance(messages, Conversation) else {}
        extra = {"finish_reason": finish_reason} if finish_reason is not None else {}
        return item(problem, list(messages), reward, {**sampling_params, **extra, **facts})
    except Exception as error:
        traceback.print_exc()
        return failed(problem, f"{type(error).__name__}: {error}", sampling_params)


def failed(problem: dict[str, Any], why: str, sampling_params: Mapping[str, Any]) -> dict[str, Any]:
    """The item of a rollout that came to nothing."""
    messages = [*problem["prompt"], {"role": "assistant", "content": ""}]
    return item(problem, messages, FAILED_REWARD, {**sampling_params, "finish_reason": "error", "error": why[:2000]})


def item(problem: Mapping[str, Any], messages: list[dict[str, Any]], reward: float, facts: Mapping[str, Any]) -> dict[str, Any]:
    """An item as the buffer takes it, under a uid of its own."""
    rest = {name: value for name, value in problem.items() if name not in ("instance_id", "uid", "messages", "reward", "extra_info")}
    given = problem.get("extra_info")
    return {
        "uid": str(uuid.uuid4()),
        "instance_id": problem["instance_id"],
        "messages": messages,
        "reward": reward,
        "extra_info": {
            **(given if isinstance(given, dict) else {}),
            **rest,
            **facts,
            "timestamp": str(time.time()),
            "round_number": sum(message["role"] == "assistant" for message in messages),
        },
    }


def _number(reward: Any) -> float:
    value = reward.item() if hasattr(reward, "item") else reward
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"the reward function must give a finite number, it gave {reward!r}")
    return value
