"""A session that has ended, as the rollout that the buffer stores. Pure: the same session gives the same bytes, however often it is asked."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from penstock.errors import InvalidError
from penstock.gateway.conversation import Conversation, Point
from penstock.gateway.events import Ended, Opened, Repeats, Rewarded
from penstock.gateway.recording import recorded
from penstock.types import Json, Purpose, Rollout, RolloutStatus, VersionRun

TURNS = "turns"
"""Name of the reward of a session that only its replies were given rewards for: their sum."""


@dataclass(slots=True, kw_only=True)
class ReplyReward:
    """What one reply was given."""

    own: float | None = None
    parts: dict[str, float] = field(default_factory=dict)

    @property
    def value(self) -> float:
        """As a whole."""
        return _sum(self.parts.values()) if self.own is None else self.own


@dataclass(slots=True, kw_only=True)
class Rewards:
    """What a session was given so far."""

    total: dict[str, float] = field(default_factory=dict)
    by_reply: dict[int, ReplyReward] = field(default_factory=dict)
    """By point of the conversation."""

    def apply(self, event: Rewarded) -> None:
        """Later ones replace earlier ones of the same name."""
        if event.reply is None:
            self.total.update(event.rewards)
            return
        reply = self.by_reply.setdefault(event.reply, ReplyReward())
        reply.parts.update(event.rewards)
        reply.own = reply.own if event.own is None else event.own

    def after(self, event: Rewarded) -> Rewards:
        """As they would be. Raises `InvalidError` if they add up to more than a number can be."""
        made = Rewards(
            total=dict(self.total), by_reply={number: ReplyReward(own=reply.own, parts=dict(reply.parts)) for number, reply in self.by_reply.items()}
        )
        made.apply(event)
        for given in (made.total, *(reply.parts for reply in made.by_reply.values())):
            _sum(given.values())
        return made

    def named(self, kept: AbstractSet[int]) -> dict[str, float]:
        """The rewards of the rollout, by name. Those of replies count only if nothing was said about the whole."""
        if self.total or not self.by_reply:
            return dict(self.total)
        return {TURNS: _sum(reward.value for number, reward in sorted(self.by_reply.items()) if number in kept)}


def abandoned(conversation: Conversation, repeats: Repeats) -> dict[int, str]:
    """Replies that nobody needs, by point, with the reason.

    To one prompt, the replies that were continued are kept. If none was: the first choice of the last answer that its client got.
    """
    reasons: dict[int, str] = {}
    for prompt in conversation.prompts():
        if len(prompt.children) == 1 and not conversation.points[prompt.children[0]].is_gone:
            continue  # so it is with most: there is nothing else to keep
        replies = [conversation.points[number] for number in prompt.children]
        attempts = [[reply for reply in replies if reply.attempt == attempt] for attempt in range(1, prompt.num_attempts + 1)]
        got = [attempt for attempt in attempts if attempt and not attempt[0].is_gone]
        kept = {reply.number for reply in replies if reply.is_continued}
        if repeats == "sample":
            kept |= {reply.number for attempt in got for reply in _kept(attempt)}
        elif not kept and got:
            kept = {got[-1][0].number}
        for attempt in attempts:
            is_used = any(reply.number in kept for reply in attempt)
            for reply in attempt:
                if reply.number not in kept:
                    reasons[reply.number] = "client_gone" if reply.is_gone else "unused_choice" if is_used else "client_retry"
    return reasons


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What becomes of a session that ends now."""

    status: RolloutStatus
    failure: str | None
    error: str | None
    rewards: Mapping[str, float]
    reward: float | None
    """Their sum; None for a failure."""
    kept: frozenset[int]
    """Replies that count, by point."""
    abandoned: Mapping[int, str]
    """The others, and why."""


def verdict(opened: Opened, conversation: Conversation, rewards: Rewards, ended: Ended, *, trainable_policy: str) -> Verdict:
    """Look at a session without changing it. Raises `InvalidError` if it has no reward, or none that is a number, and should have one."""
    points = conversation.points
    reasons = abandoned(conversation, opened.manner.repeats)
    kept = frozenset([point.number for point in points if point.choice is not None and point.number not in reasons])
    status, failure, error = ended.status, ended.failure, ended.error
    is_trained = status.usable and opened.slot.purpose is Purpose.TRAIN
    if is_trained and not any(run.policy == trainable_policy for number in kept for run in _versions(points[number])):
        status, error = RolloutStatus.ENV_ERROR, "not_trainable"
        failure = "no reply of the session was sampled from the policy itself: all were bent by filters" if kept else "the session has no reply"
    total = rewards.named(kept) if status.usable else {}
    if status.usable and not total:
        raise InvalidError("the session has no reward: give it one (POST .../reward, or `reward` here), or end it with a status that says what failed")
    reward = _sum(total.values()) if status.usable else None
    return Verdict(status=status, failure=failure, error=error, rewards=total, reward=reward, kept=kept, abandoned=reasons)


def rollout_of(opened: Opened, conversation: Conversation, rewards: Rewards, ended: Ended, *, trainable_policy: str) -> Rollout:
    """The rollout."""
    found = verdict(opened, conversation, rewards, ended, trainable_policy=trainable_policy)
    made, slot = recorded(conversation), opened.slot
    for number, given in rewards.by_reply.items():
        made.recorder.attach(made.marks[number], reward=given.value, rewards=given.parts)
    for number, reason in found.abandoned.items():
        made.recorder.abandon(made.recorder.message_spans(made.marks[number])[0], reason)
    return Rollout(
        run=slot.run,
        environment=slot.environment,
        problem_id=slot.problem_id,
        group_id=slot.group_id,
        member=slot.member,
        retry=slot.retry,
        rollout_uid=slot.uid,
        trace=made.recorder.trace(),
        status=found.status,
        reward=found.reward,
        rewards=found.rewards,
        failure=found.failure,
        metadata=_metadata(opened, ended, found),
    )


def _metadata(opened: Opened, ended: Ended, found: Verdict) -> dict[str, Json]:
    counts: dict[str, Json] = dict(Counter(found.abandoned.values()))
    facts: dict[str, Json] = {"source": "gateway", "steps": len(found.kept), "abandoned": counts}
    return {**opened.metadata, **ended.metadata, **facts, **({} if found.error is None else {"error": found.error})}


def _kept(attempt: list[Point]) -> list[Point]:
    return [reply for reply in attempt if reply.is_continued] or attempt[:1]


def _versions(point: Point) -> tuple[VersionRun, ...]:
    return point.choice.versions if point.choice is not None else ()


def _sum(rewards: Iterable[float]) -> float:
    try:
        return math.fsum(rewards)
    except OverflowError:
        raise InvalidError("rewards: they add up to more than a number can be") from None
