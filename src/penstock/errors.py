"""Every failure that penstock raises on purpose.

    PenstockError
    ├── ConfigError             a setting is unknown, ill-typed or impossible           exit 2
    ├── InputError              a client's value is wrong; names the field              4xx
    │   ├── MalformedError      not JSON or msgpack, too deep, duplicate keys           400
    │   ├── InvalidError        a field has a value that it may not have                422
    │   │   └── BadRequestError likewise, on routes that speak OpenAI's API               400
    │   ├── UnauthorizedError   no token, or one that nobody gave out                   401
    │   ├── ForbiddenError      a token without the scope; a lease of somebody else     403
    │   ├── UnknownError        no such run, group, rollout, session, plan              404
    │   │   ├── RetiredError    it was there, and retention gave it up                  410
    │   │   └── InexactError    something has nearly that name: the message says what   404
    │   ├── MethodError         the path is there, but not for this method              405
    │   ├── ConflictError       the same key with other content; a slot that is taken   409
    │   ├── FencedError         an older term, an ended session, an old retry           409
    │   ├── MediaTypeError      a body in a form that is not read                       415
    │   └── LimitError          over a limit: body, buffer, connections                 413 or 429
    ├── StoreError              the store cannot keep or give what was asked            503
    │   ├── StoreFullError      no space                                                507
    │   ├── CorruptError        a record fails its checksum; it is set aside
    │   ├── ArchiveError        an archive file cannot be read now
    │   └── SchemaError         a store of a newer or foreign schema
    ├── EpisodeError            an episode failed; becomes a stored status, never a reward
    │   ├── InfraError          a server, tool or process failed: the slot is tried again
    │   └── EnvError            the environment calls the episode invalid
    ├── WeightsError            weights are wrong, truncated, foreign, or did not arrive
    ├── MismatchError           sampler and learner disagree about logprobs
    ├── ReplayError             a replay did not give what was recorded
    ├── ProcessError            a part of a run keeps dying, hangs or cannot be started  exit 1
    └── InvariantError          our own mistake: a law of the ledger was about to be broken

Raise at the border that was crossed; catch only to add a fact, to retry by a stated policy, or to turn a failed episode into data.
"""

from __future__ import annotations


class PenstockError(Exception):
    """Base of all; `code` is a stable word for machines, the message a sentence for people."""

    code = "error"
    http_status = 500


class ConfigError(PenstockError):
    """A setting is unknown, ill-typed or impossible."""

    code = "config"
    http_status = 400


class InputError(PenstockError):
    """A client's value is wrong."""

    code = "input"
    http_status = 400


class MalformedError(InputError):
    """The bytes do not decode strictly."""

    code = "malformed"
    http_status = 400


class InvalidError(InputError):
    """A field has a value that it may not have."""

    code = "invalid"
    http_status = 422


class BadRequestError(InvalidError):
    """A field of a request for a completion is wrong: 400 in OpenAI's shape."""

    http_status = 400

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class UnauthorizedError(InputError):
    """Nobody knows who is asking."""

    code = "unauthorized"
    http_status = 401


class ForbiddenError(InputError):
    """Who is asking may not."""

    code = "forbidden"
    http_status = 403


class UnknownError(InputError):
    """Nothing has that name."""

    code = "unknown"
    http_status = 404


class MethodError(InputError):
    """The path is there, but not for this method. `allowed` says for which."""

    code = "method"
    http_status = 405

    def __init__(self, message: str, *, allowed: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.allowed = allowed


class RetiredError(UnknownError):
    """It was there, and retention gave it up."""

    code = "retired"
    http_status = 410


class InexactError(UnknownError):
    """Nothing has that very name, but something has nearly it; the message says what to ask for."""

    code = "inexact"
    http_status = 404


class ConflictError(InputError):
    """The key is taken by other content."""

    code = "conflict"
    http_status = 409


class FencedError(InputError):
    """The caller has been replaced: its term, session or retry is over."""

    code = "fenced"
    http_status = 409


class MediaTypeError(InputError):
    """The body has a form that is not read: compressed, or of another content type."""

    code = "media_type"
    http_status = 415


class LimitError(InputError):
    """Over a limit; may be tried again later."""

    code = "limit"
    http_status = 429

    def __init__(self, message: str, *, retry_after_seconds: float = 1.0, http_status: int = 429) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds
        self.http_status = http_status


class StoreError(PenstockError):
    """The store cannot keep or give what was asked. Nothing was acknowledged."""

    code = "store"
    http_status = 503


class StoreFullError(StoreError):
    """No space left."""

    code = "store_full"
    http_status = 507


class CorruptError(StoreError):
    """A record fails its checksum. It is never served."""

    code = "corrupt"


class ArchiveError(StoreError):
    """An archive file cannot be read now: pyarrow is not there, or the disk refuses."""

    code = "archive"


class SchemaError(StoreError):
    """A store of a schema that this version does not read."""

    code = "schema"


class EpisodeError(PenstockError):
    """An episode failed."""

    code = "episode"


class InfraError(EpisodeError):
    """A server, tool or process failed."""

    code = "infra_error"


class EnvError(EpisodeError):
    """The environment calls the episode invalid."""

    code = "env_error"


class WeightsError(PenstockError):
    """Weights are wrong, truncated, foreign, or did not arrive."""

    code = "weights"
    http_status = 422


class MismatchError(PenstockError):
    """Sampler and learner disagree about logprobs."""

    code = "mismatch"


class ReplayError(PenstockError):
    """A replay did not give what was recorded."""

    code = "replay"


class ProcessError(PenstockError):
    """A part of a run keeps dying, hangs or cannot be started."""

    code = "process"


class InvariantError(PenstockError):
    """A law of the ledger was about to be broken by our own mistake."""

    code = "invariant"


def first_cause(error: BaseException) -> BaseException:
    """What went wrong, out of the groups that tasks wrap it in: one of our own errors if there is one.

    >>> first_cause(ExceptionGroup("tasks", [ValueError("a"), ExceptionGroup("inner", [ConfigError("b")])]))
    ConfigError('b')
    """
    if not isinstance(error, BaseExceptionGroup):
        return error
    causes = [first_cause(inner) for inner in error.exceptions]
    return next((cause for cause in causes if isinstance(cause, PenstockError)), causes[0])
