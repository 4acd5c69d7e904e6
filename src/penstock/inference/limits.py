"""What an engine may take. Apart from the settings of a server: a run's config needs no server."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """What bounds the engine's memory and the length of a step."""

    max_running: int = 128
    """Replies that are computed at once."""
    max_queued: int = 1024
    """Requests that may wait; more are told to come back later (429)."""
    kv_tokens: int = 131_072
    """Tokens that running replies may come to keep keys and values for; prompt and `max_tokens` are reserved when a request is admitted.
    Memory may reach about twice that for moments, while caches grow."""
    prefix_tokens: int = 32_768
    """Tokens of prompts that are kept for later requests."""
    prefill_tokens: int = 2048
    """Prompt tokens that are computed at once, and after which running replies get their turn."""
    context_tokens: int = 32_768
    """Longest prompt with its reply, if the model allows as much."""

    def __post_init__(self) -> None:
        for name in ("max_running", "kv_tokens", "prefill_tokens", "context_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"inference.limits.{name} must be 1 or more, got {getattr(self, name)}")
        for name in ("max_queued", "prefix_tokens"):
            if getattr(self, name) < 0:
                raise ConfigError(f"inference.limits.{name} must be 0 or more, got {getattr(self, name)}")
