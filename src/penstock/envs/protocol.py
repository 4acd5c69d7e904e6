"""What an environment is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from penstock.problems import ProblemSource, Split
from penstock.types import Json, Message, Problem, Rollout
from penstock.types.frozen import quickly_made

Rewards = Mapping[str, float]
"""Named parts of a reward; their sum is the rollout's reward."""


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What an environment shows after it was opened or acted on."""

    messages: tuple[Message, ...] = ()
    """What is new in the conversation since the agent's reply. At least one, unless the episode is done; after that nobody reads them."""
    reward: float | None = None
    """Of the last step alone, where there is such a thing. It is recorded with the step and not part of the rollout's reward unless `score` counts it."""
    done: bool = False
    info: Mapping[str, Json] = field(default_factory=dict)
    """Facts about the last step that are stored with it."""
    observation: Json = None
    """The bare state that the agent will act on, without history: steps of a group with equal ones are compared with each other. None: no such comparison."""
    tools: tuple[Json, ...] = ()
    """What the agent may call in this episode, in the shape of OpenAI's API. Read when the episode opens, and only then."""


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What the agent said."""

    text: str
    tool_calls: tuple[Json, ...] = ()
    """In the shape of OpenAI's API."""
    truncated: bool = False
    """A limit cut it off."""


class Env(Protocol):
    """One episode: made for it, then thrown away.

    Whatever it raises, or a wait beyond the actor's `step_seconds`, ends the episode as `infra_error`, and its slot is tried again. `EnvError` says that
    the episode is invalid by itself: stored, not trained, not tried again. A wrong answer is neither: it is a reward.

    An environment that holds something (a browser, a sandbox, a file) may have a further `async def close(self) -> None`. It is called once, when the
    episode is over, however it ended.
    """

    async def open(self, problem: Problem, seed: int) -> Observation:
        """Begin. The members of a group are opened with the same problem and the same seed, so that they begin alike."""

    async def step(self, reply: Reply) -> Observation:
        """Go on with what the agent said."""

    async def score(self, rollout: Rollout) -> Rewards:
        """The rewards of an episode that has ended, one finite number or more. `rollout` is complete but for its rewards."""


class Environment(Protocol):
    """A kind of episode with its settings. Lives as long as a worker; its `Env`s do not know of each other."""

    def problems(self, split: Split) -> ProblemSource:
        """The problems to train on, or those that are held out. No problem is in both."""

    def make(self) -> Env:
        """A fresh `Env` for one episode."""
