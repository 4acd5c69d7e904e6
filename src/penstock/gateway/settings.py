"""How agents that a worker starts are run."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.gateway.config import Limits
from penstock.types import Purpose


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """How a worker's agents are run."""

    concurrency: int = 64
    temperature: float | None = None
    """Used in place of what the agent asks for; None leaves it to the agent."""
    max_tokens: int = 128
    """Of a reply, where the agent names no limit."""
    max_turns: int = 4096
    max_session_tokens: int = 500_000
    episode_seconds: float = 600.0
    """An agent that has not returned by then has failed."""
    reply_seconds: float = 120.0
    purpose: Purpose = Purpose.TRAIN

    @property
    def limits(self) -> Limits:
        """Of the sessions that they get."""
        return Limits(
            max_sessions=4 * self.concurrency,
            max_turns=self.max_turns,
            max_session_tokens=self.max_session_tokens,
            # The host itself ends sessions in time; this is for the case that it does not.
            session_seconds=2 * self.episode_seconds + 60,
            idle_seconds=2 * self.episode_seconds + 60,
            reply_seconds=self.reply_seconds,
        )
