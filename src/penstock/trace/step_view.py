"""The steps of an agent, for step-level credit. Called by estimators that look inside an episode."""

from __future__ import annotations

import numpy as np

from penstock.trace.paths import Conversation, conversation, is_kept, step_marks
from penstock.types import Json, Mark, Message, Rollout, RolloutStatus, Source, StepData, Trace, kept_segments


def steps(rollout: Rollout) -> list[StepData]:
    """One step for each assistant's message on a kept branch, in the order of recording; entry i belongs to `step_marks(rollout.trace)[i]`.

    The history that results from a step ends before the next assistant's message (on the first branch, where it forks). A step without
    facts from its environment is done if it is the last of its branch and the rollout was not cut off.
    """
    trace = rollout.trace
    talk = conversation(trace)
    next_of = _next_marks(trace, talk)
    found = []
    for step_index, number in enumerate(step_marks(trace)):
        mark = trace.marks[number]
        before = [trace.marks[other].message for other in talk.before(number)]
        answers, is_last = _answers(trace, next_of, number)
        facts = mark.step
        found.append(
            StepData(
                system_step_index=step_index,
                observation_data=facts.observation if facts is not None and facts.observation is not None else [_as_json(message) for message in before],
                action_taken=facts.action if facts is not None and facts.action is not None else {"type": "text", "content": mark.message.content},
                raw_policy_output=mark.message.content,
                resulting_messages_history=[*before, mark.message, *answers],
                policy_logprobs=_policy_logprobs(trace, mark),
                policy_value_estimate=None if facts is None else facts.value_estimate,
                is_done=facts.done if facts is not None else is_last and rollout.status is RolloutStatus.OK,
                step_info={} if facts is None else facts.info,
                base_reward=mark.reward,
            )
        )
    return found


def _next_marks(trace: Trace, talk: Conversation) -> dict[int, int]:
    """For each mark that a kept message continues, the first one that does."""
    kept = kept_segments(trace)
    next_of: dict[int, int] = {}
    for number, previous in enumerate(talk.previous):
        if previous is not None and is_kept(trace.marks[number], kept):
            next_of.setdefault(previous, number)
    return next_of


def _answers(trace: Trace, next_of: dict[int, int], number: int) -> tuple[list[Message], bool]:
    """The messages between a step and the next one, and whether there is no next one."""
    answers = []
    following = next_of.get(number)
    while following is not None and trace.marks[following].message.role != "assistant":
        answers.append(trace.marks[following].message)
        following = next_of.get(following)
    return answers, following is None


def _policy_logprobs(trace: Trace, mark: Mark) -> Json:
    """Ids and logprobs of the message's sampled tokens; None if none was sampled."""
    sampled = [segment for segment in trace.segments[mark.start : mark.stop] if segment.source is Source.SAMPLED]
    if not sampled:
        return None
    logprobs = [segment.logprobs for segment in sampled if segment.logprobs is not None]
    return {"token_ids": np.concatenate([segment.ids for segment in sampled]).tolist(), "logprobs": np.concatenate(logprobs).tolist()}


def _as_json(message: Message) -> Json:
    """A message in the shape of OpenAI's API, without what it does not have."""
    optional = {"tool_calls": list(message.tool_calls), "tool_call_id": message.tool_call_id, "name": message.name}
    return {"role": message.role, "content": message.content, **{key: value for key, value in optional.items() if value}}
