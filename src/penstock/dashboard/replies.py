"""One reply of a run, as its tokens and the versions that sampled them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.types import Rollout, Source


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownToken:
    """A sampled token."""

    text: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownReply:
    """A rollout as people see it."""

    uid: str
    prompt: str
    tokens: tuple[ShownToken, ...]
    reward: float | None

    @property
    def versions(self) -> tuple[int, ...]:
        """That sampled something in it, oldest first."""
        return tuple(sorted({token.version for token in self.tokens}))


def shown(rollout: Rollout, decode: Callable[[Sequence[int]], str]) -> ShownReply:
    """The reply in a rollout, token by token. `decode` spells token ids."""
    prompt: list[int] = []
    tokens: list[ShownToken] = []
    for segment in rollout.trace.segments:
        ids = [int(token) for token in segment.ids]
        if segment.source is not Source.SAMPLED:
            prompt += ids
            continue
        versions = [run.version for run in segment.versions for _ in range(run.count)]
        tokens += [ShownToken(text=decode([token]), version=version) for token, version in zip(ids, versions, strict=True)]
    return ShownReply(uid=rollout.rollout_uid, prompt=decode(prompt), tokens=tuple(tokens), reward=rollout.reward)


def most_telling(replies: Sequence[ShownReply], before: ShownReply | None) -> ShownReply | None:
    """The reply to show: the newest of those that the most versions have sampled. One that was shown before stays until there is one that tells as much."""
    best = max(enumerate(replies), key=lambda item: (len(item[1].versions), item[0]), default=None)
    if best is None or (before is not None and len(best[1].versions) < len(before.versions)):
        return before
    return best[1]
