"""Who may do what: tokens, each with its scopes. They come from a file or the environment, never from the command line, which everybody can read.

Clients send theirs as `Authorization: Bearer ...`. One that knows nothing but a URL, as programs written for servers without tokens do, has it there
(`http://any:TOKEN@host:port`, `http://TOKEN@host:port`): HTTP libraries make `Authorization: Basic ...` of that, and it is taken, too.

A line of a token file, or a part of `PENSTOCK_TOKENS` between semicolons, is a token; `produce,view=VALUE` limits it to scopes, `VALUE` alone has all.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from penstock.errors import ConfigError
from penstock.process.credentials import TOKEN_VARIABLE

TOKENS_VARIABLE = "PENSTOCK_TOKENS"
"""Further tokens that a server takes, separated by semicolons."""

_VALUE = re.compile(r"[\x21-\x7e]+")
_SCOPED = re.compile(r"([a-z]+(?:,[a-z]+)*)=([^=].*)")


class Scope(StrEnum):
    """What a request does, and so what its token must allow."""

    PRODUCE = "produce"
    """Open groups, claim slots, write rollouts and annotations; sample from a model."""
    CONSUME = "consume"
    """Cut, fetch, lease and settle groups; the learner's verbs."""
    WEIGHTS = "weights"
    """Push weights."""
    ADMIN = "admin"
    """Everything that belongs to no other scope: open runs, start and stop generators."""
    VIEW = "view"
    """Look: status, ledger, metrics, single groups and rollouts, export."""


ALL_SCOPES = frozenset(Scope)


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A secret and what it allows."""

    value: str
    scopes: frozenset[Scope] = ALL_SCOPES

    def __repr__(self) -> str:
        return f"Token({','.join(sorted(self.scopes))})"


def read_tokens(path: Path | None, environ: Mapping[str, str]) -> tuple[Token, ...]:
    """The tokens that a server takes: those of a file and those of the environment. Raises `ConfigError` for one that cannot be sent."""
    words: list[tuple[str, str]] = []
    if path is not None:
        try:
            lines = path.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the token file {path} cannot be read: {getattr(error, 'strerror', None) or 'it is not text'}") from None
        words += [(f"line {number} of {path}", line) for number, line in enumerate(lines, 1) if line.strip() and not line.startswith("#")]
        if not words:
            raise ConfigError(f"the token file {path} names no token")
    words += [(TOKENS_VARIABLE, word) for word in environ.get(TOKENS_VARIABLE, "").split(";") if word.strip()]
    tokens = [parse_token(word.strip(), where) for where, word in words]
    own = environ.get(TOKEN_VARIABLE, "").strip()
    if own:
        tokens.append(Token(value=_checked(own, TOKEN_VARIABLE)))
    return tuple(tokens)


def parse_token(word: str, where: str) -> Token:
    """`VALUE` or `scope,scope=VALUE`.

    >>> parse_token("view,produce=s3cret", "here")
    Token(produce,view)
    """
    scoped = _SCOPED.fullmatch(word)
    if scoped is None:
        return Token(value=_checked(word, where))
    unknown = [name for name in scoped[1].split(",") if name not in ALL_SCOPES]
    if unknown:
        raise ConfigError(f"{where}: there is no scope {unknown[0]!r}; scopes are {', '.join(Scope)}")
    return Token(value=_checked(scoped[2], where), scopes=frozenset(map(Scope, scoped[1].split(","))))


def allowed(authorization: str, tokens: Iterable[Token]) -> frozenset[Scope]:
    """What an `Authorization` header allows; nothing if no token is that. Every token is compared, each in constant time."""
    given = _given(authorization)
    scopes: frozenset[Scope] = frozenset()
    for token in tokens:
        # A digest compare of bytes, so that neither place nor length of a difference shows in the time.
        if sum(hmac.compare_digest(secret, token.value.encode()) for secret in given):
            scopes |= token.scopes
    return scopes


def _given(authorization: str) -> tuple[bytes, ...]:
    """What may be a token in an `Authorization` header: of a name and a password, either."""
    kind, _, rest = authorization.partition(" ")
    secret = rest.strip().encode("utf-8", "surrogateescape")
    if kind.lower() == "bearer":
        return (secret,)
    if kind.lower() != "basic":
        return ()
    try:
        name, _, password = base64.b64decode(secret, validate=True).partition(b":")
    except binascii.Error:
        return ()
    return (name, password)


def _checked(value: str, where: str) -> str:
    if not _VALUE.fullmatch(value):
        raise ConfigError(f"{where}: a token is made of printable ASCII characters without spaces")
    return value
