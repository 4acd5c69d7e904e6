"""Who acted, for what problem, and how it went."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from penstock.types.frozen import quickly_made
from penstock.types.tokens import Float32Array, InferenceMetadata, Int32Array, Json, Message, NamedArrays, Segment, Trace, kept_segments
from penstock.types.words import Word


class Purpose(Word):
    """What a group is for. Only `train` groups are ever cut."""

    TRAIN = "train"
    EVAL = "eval"
    PROBE = "probe"


class RolloutStatus(Word):
    """How an episode ended. A wrong answer is `ok` with a low reward; a failure is never a reward."""

    OK = "ok"
    TRUNCATED = "truncated"
    """Cut off by a limit; trains like any other."""
    INFRA_ERROR = "infra_error"
    """A server, a tool or a process failed: stored, not trained, its slot is tried again."""
    ENV_ERROR = "env_error"
    """The environment itself calls the episode invalid: stored, not trained, not tried again."""

    usable: bool
    """Whether the rollout may be trained on. Told with each member, because it is asked several times for every rollout."""

    def __init__(self, word: str) -> None:
        self.usable = word in ("ok", "truncated")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something to solve."""

    id: str
    environment: str
    prompt: str | tuple[Message, ...] = ""
    """Text or chat to start from; the environment says what it does with it."""
    task: Mapping[str, Json] = field(default_factory=dict)
    """Task definition for environments that need more than a prompt."""
    ground_truth: Json = None
    """What a grader compares with; never shown to the agent."""
    difficulty: float | None = None
    metadata: Mapping[str, Json] = field(default_factory=dict)
    parent: str | None = None
    """Id of the problem this one was derived from."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Turn:
    """One message of a rollout with the tokens that spell it. A view of a trace: nothing is stored twice."""

    message: str
    role: str
    tokens: Int32Array | None = None
    logprobs: Float32Array | None = None
    """One per sampled token of the message; None if none was sampled."""
    reward: float | None = None
    rewards: Mapping[str, float] = field(default_factory=dict)
    inference_metadata: InferenceMetadata | None = None
    timestamp: int | None = None


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rollout:
    """One try at a problem. Iterates over its turns."""

    run: str
    environment: str
    problem_id: str
    group_id: str
    """`source/pass/index`: opening a group twice opens it once."""
    member: int
    """Slot in the group, from 0."""
    retry: int
    """Which try at the slot, from 0; fences a worker that was thought dead."""
    rollout_uid: str
    trace: Trace
    status: RolloutStatus = RolloutStatus.OK
    reward: float | None = None
    """Linearised total; None exactly when the status is not usable."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """Named parts of the reward."""
    failure: str | None = None
    """What went wrong, for a status that is not usable."""
    metadata: Mapping[str, Json] = field(default_factory=dict)

    @property
    def turns(self) -> list[Turn]:
        """The messages on kept branches, in order."""
        return list(self)

    def __iter__(self) -> Iterator[Turn]:
        segments = self.trace.segments
        kept = kept_segments(self.trace)
        for mark in self.trace.marks:
            if mark.stop > mark.start and not kept[mark.stop - 1]:
                continue
            own = segments[mark.start : mark.stop]
            logprobs = [segment.logprobs for segment in own if segment.logprobs is not None]
            yield Turn(
                message=mark.message.content,
                role=mark.message.role,
                tokens=np.concatenate([segment.ids for segment in own]) if own else None,
                logprobs=np.concatenate(logprobs) if logprobs else None,
                reward=mark.reward,
                rewards=mark.rewards,
                inference_metadata=mark.inference,
                timestamp=mark.timestamp,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepData:
    """One step of an agent, for step-level credit. A view of a rollout; `advantage` and `return_to_go` are filled by an estimator."""

    system_step_index: int
    observation_data: Json
    """What the policy saw: the anchor observation where the environment gives one, else the messages before the action."""
    action_taken: Json
    raw_policy_output: str | None
    resulting_messages_history: list[Message]
    policy_logprobs: Json = None
    """`{"token_ids": [...], "logprobs": [...]}` of the step's sampled tokens."""
    policy_value_estimate: float | None = None
    is_done: bool = False
    step_info: Mapping[str, Json] = field(default_factory=dict)
    base_reward: float | None = None
    advantage: float | None = None
    return_to_go: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Annotation:
    """A fact found out about a stored rollout afterwards (a score, a judge's word, reference logprobs). Key: rollout, name, step."""

    run: str
    rollout_uid: str
    name: str
    step: int | None = None
    policy: str = ""
    """Which model scored it, if one did, and at which version."""
    version: int | None = None
    values: Mapping[str, Json] = field(default_factory=dict)
    arrays: NamedArrays = field(default_factory=dict)
    segments: tuple[Segment, ...] = ()
    """Further segments; their parents count through the stored trace and then through this tuple."""
    failed: str | None = None
    """Why there is no result. A failed annotation still counts as present."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Group:
    """All members that are compared with each other, as delivered for training."""

    run: str
    id: str
    environment: str
    problem_id: str
    purpose: Purpose
    rollouts: tuple[Rollout, ...]
    """Usable members, by slot."""
    annotations: tuple[Annotation, ...] = ()
    digest: str = ""
    """Content digest that the plan names."""
