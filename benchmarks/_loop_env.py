"""The work of the loop's benchmark, for both sides: prompts of a given length, replies of any kind, and a reward that differs between them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.envs import Observation, Reply
from penstock.problems import Split
from penstock.types import Message, Problem, Rollout

LETTERS = "abcdefghijklmnopqrstuvwxyz 0123456789"


def prompt_text(index: int, num_tokens: int) -> str:
    """The index-th prompt: one token a character, for a tokenizer of bytes."""
    source = random.Random(index)
    return "".join(source.choices(LETTERS, k=num_tokens))


def reward_of(text: str) -> float:
    """Share of different characters among all of them."""
    return len(set(text)) / max(1, len(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptEnvironment:
    """One prompt, one reply."""

    prompt_tokens: int = 200

    def problems(self, split: Split) -> Prompts:
        """See `Environment`."""
        return Prompts(split.value, self.prompt_tokens)

    def make(self) -> PromptEnv:
        """See `Environment`."""
        return PromptEnv()


@dataclass(frozen=True, slots=True)
class Prompts:
    """Endless."""

    name: str
    prompt_tokens: int
    size: None = None

    def problem(self, pass_: int, index: int) -> Problem:
        """See `ProblemSource`."""
        return Problem(id=f"prompt-{index}", environment="prompt", prompt=prompt_text(index, self.prompt_tokens))


class PromptEnv:
    """One episode."""

    def __init__(self) -> None:
        self._text = ""

    async def open(self, problem: Problem, seed: int) -> Observation:
        """See `Env`."""
        assert isinstance(problem.prompt, str)
        return Observation(messages=(Message(role="user", content=problem.prompt),))

    async def step(self, reply: Reply) -> Observation:
        """See `Env`."""
        self._text = reply.text
        return Observation(done=True)

    async def score(self, rollout: Rollout) -> Mapping[str, float]:
        """See `Env`."""
        return {"distinct": reward_of(self._text)}
