"""Settings of a gateway."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from penstock.config import check_range
from penstock.errors import ConfigError
from penstock.gateway.events import Manner
from penstock.httpd import Access


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a gateway takes on."""

    max_sessions: int = 4096
    """Open sessions; one more is refused with 429."""
    max_requests: int = 64
    """Requests of one session under way; one more is refused with 429."""
    max_choices: int = 64
    """The most that `n` may ask for."""
    max_turns: int = 4096
    """Requests that one session may have answered; then they are refused with 400 and it can only be ended."""
    max_session_tokens: int = 500_000
    """Tokens that one session may hold, all branches together; likewise."""
    session_seconds: float = 3600.0
    """A session that is still open after this has failed (`deadline`). A client may ask for less."""
    idle_seconds: float = 900.0
    """A session that nobody asks anything for so long has failed (`idle`)."""
    reply_seconds: float = 300.0
    """A reply that the engine does not give in this time is an error of the request: 503."""

    def __post_init__(self) -> None:
        for name in ("max_sessions", "max_requests", "max_choices", "max_turns", "max_session_tokens"):
            check_range(name, getattr(self, name), least=1)
        for name in ("session_seconds", "idle_seconds", "reply_seconds"):
            check_range(name, getattr(self, name), above=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """One gateway process."""

    engines: tuple[str, ...]
    """Inference servers, without `/v1`."""
    model: Path
    """Directory with the tokenizer and chat template of the model that they serve."""
    buffer_url: str
    run: str = ""
    """Run that sessions belong to; empty: the only one that the buffer has."""
    open_run: bool = False
    """Open the run if the buffer does not have it."""
    name: str = "gateway"
    """Names this gateway: started again under the same name, it goes on with its sessions."""
    template: str | None = None
    """A built-in chat template to use in place of the model's own."""
    policy: str = "policy"
    """Name of the model that engines serve, for those that do not say."""
    max_tokens: int = 1024
    """Of a reply, where neither client nor session names a limit."""
    manner: Manner = field(default_factory=Manner)
    """Of sessions that say nothing else."""
    limits: Limits = field(default_factory=Limits)
    access: Access = field(default_factory=Access)
    port: int = 8100
    port_file: Path | None = None
    public_url: str = ""
    """How agents reach this gateway, if not under the name by which its sessions are opened."""
    token: str | None = None
    """For the engines and the buffer."""

    def __post_init__(self) -> None:
        check_range("engines", len(self.engines), least=1)
        check_range("max_tokens", self.max_tokens, least=1)
        check_range("temperature", self.manner.temperature, least=0)
        for url in (*self.engines, self.buffer_url):
            if not url.startswith(("http://", "https://")):
                raise ConfigError(f"{url!r} is not the URL of a server: it must begin with http:// or https://")
