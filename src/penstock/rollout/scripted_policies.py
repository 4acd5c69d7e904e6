"""Policies for tests and debugging: one that follows a script, one that does what a stored rollout did."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from penstock.errors import ReplayError
from penstock.inference.client import Reply
from penstock.rollout.policy import Action, Situation, action_from
from penstock.trace import step_marks
from penstock.types import InferenceMetadata, Int32Array, Json, Message, Rollout, Segment, Source

Line = str | Action | Callable[[Situation], "str | Action"]
"""What to do in one step: a text, an action, or a function that decides."""


class ScriptedPolicy:
    """Says its lines, one for each step, and terminates after the last. Its words are recorded as injected and never trained on.

    Which step it is follows from the conversation, so that one policy may play many episodes at once.
    """

    def __init__(self, script: Sequence[Line]) -> None:
        self._script = tuple(script)

    async def get_action(self, observation: Situation, available_tools_specs: Sequence[Json] | None = None) -> Action:
        """See `AgentPolicy`."""
        step = _num_replies(observation)
        if step >= len(self._script):
            return Action(type="terminate", message=Message(role="assistant"))
        line = self._script[step]
        said = line(observation) if callable(line) else line
        return said if isinstance(said, Action) else Action(message=Message(role="assistant", content=said))


class ReplayingPolicy:
    """Does what the agent of a stored rollout did, token by token, with the logprobs and versions of then.

    Raises `ReplayError` if the conversation is not the stored one (the environment has answered otherwise), or goes on after its end.
    """

    def __init__(self, rollout: Rollout) -> None:
        self._rollout = rollout
        self._marks = [rollout.trace.marks[number] for number in step_marks(rollout.trace)]

    async def get_action(self, observation: Situation, available_tools_specs: Sequence[Json] | None = None) -> Action:
        """See `AgentPolicy`."""
        uid, step = self._rollout.rollout_uid, _num_replies(observation)
        if step >= len(self._marks):
            raise ReplayError(f"{uid} has {len(self._marks)} steps, and step {step} is asked for")
        mark = self._marks[step]
        segments = self._rollout.trace.segments[mark.start : mark.stop]
        if segments:
            stored = _ids_before(self._rollout.trace.segments, segments[0])
            if not np.array_equal(stored, observation.ids):
                place = _first_difference(stored, observation.ids)
                raise ReplayError(f"before step {step} of {uid} the conversation leaves the stored one at token {place}")
        metadata = mark.inference or InferenceMetadata()
        is_sampled = bool(segments) and all(segment.source is Source.SAMPLED for segment in segments)
        reply = _reply(segments, mark.message.content, metadata) if is_sampled else None
        action = action_from(mark.message, reply=reply, truncated=metadata.finish_reason == "length")
        if mark.step is not None and isinstance(mark.step.action, dict) and mark.step.action.get("type") == "terminate":
            return Action(type="terminate", message=action.message, reply=reply, truncated=action.truncated)
        return action


def _num_replies(situation: Situation) -> int:
    return sum(message.role == "assistant" for message in situation.messages)


def _reply(segments: Sequence[Segment], text: str, metadata: InferenceMetadata) -> Reply:
    return Reply(
        ids=np.concatenate([segment.ids for segment in segments]),
        logprobs=np.concatenate([segment.logprobs for segment in segments if segment.logprobs is not None]),
        versions=tuple(run for segment in segments for run in segment.versions),
        text=text,
        metadata=metadata,
    )


def _ids_before(segments: Sequence[Segment], segment: Segment) -> Int32Array:
    parts: list[Int32Array] = []
    while segment.parent is not None:
        segment = segments[segment.parent]
        parts.append(segment.ids)
    return np.concatenate(parts[::-1]) if parts else np.empty(0, np.int32)


def _first_difference(some: Int32Array, others: Int32Array) -> int:
    length = min(len(some), len(others))
    different = np.flatnonzero(some[:length] != others[:length])
    return int(different[0]) if len(different) else length
