"""Groups, their slots and what fills them, as the buffer keeps them; and the states they go through."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from penstock.types.episodes import Purpose, RolloutStatus
from penstock.types.frozen import changed, quickly_made
from penstock.types.words import Word


class GroupState(Word):
    """`open -> complete -> ready -> bound -> spent`, or `dropped` with a reason from any state before spent."""

    OPEN = "open"
    """Slots are pending."""
    COMPLETE = "complete"
    """No slot is pending; annotations are being waited for."""
    READY = "ready"
    """May be cut."""
    BOUND = "bound"
    """In a plan, or under a lease."""
    SPENT = "spent"
    """A kept checkpoint contains its update, or an outside consumer has settled its lease."""
    DROPPED = "dropped"
    """Will never be trained on; `reason` says why."""


class MemberState(Word):
    """State of a slot: members issued = pending + accepted + failed."""

    PENDING = "pending"
    ACCEPTED = "accepted"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """What is known of a group whose members are issued as they arrive: its items' rewards, so that a reader can choose without their bytes.

    Empty while the group is open; filled in when it is complete.
    """

    instance: str
    """The instance id as it was written."""
    rewards: tuple[float | None, ...] = ()
    """By member. None: the item has none."""
    refused: tuple[int, ...] = ()
    """Members that the default filter does not keep."""
    num_bytes: int = 0
    """Of all items."""
    timed_out: bool = False
    """Closed by its timeout, not by its last member."""


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """One group."""

    run: str
    id: str
    environment: str
    problem_id: str
    purpose: Purpose
    size: int
    """Slots."""
    seed: int
    """Slot m of retry r samples with a seed derived from this one."""
    state: GroupState
    order: int
    """When it was opened: a number that only grows inside a run."""
    credit: int = 0
    """Tokens held of the environment's credits: an estimate until the group is ready, then exact; 0 once returned."""
    tokens: int = 0
    """Tokens of all usable members after prefix sharing; 0 until ready."""
    longest: int = 0
    """Sampled tokens of the longest stored member, for counts of what was dropped by length."""
    oldest_version: int | None = None
    """Smallest version among the sampled tokens of the usable members so far."""
    newest_version: int | None = None
    usable: int = 0
    """Members that were accepted so far."""
    pending: int = 0
    """Members that are still awaited."""
    filled: int = 0
    """Slots of which the last that was kept says that they are pending, though a stored rollout fills them (see `filled`)."""
    digest: str = ""
    """Over uid and digest of each usable member and annotation; set when ready."""
    updates: tuple[int, ...] = ()
    """Updates that it was cut into and that still count."""
    reason: str | None = None
    """Why it was dropped."""
    opened_at: float = 0.0
    completed_at: float | None = None
    ready_at: float | None = None
    bound_at: float | None = None
    ended_at: float | None = None
    ready_order: int | None = None
    """When it became ready: a number that only grows inside a run."""
    version_tokens: tuple[tuple[int, int], ...] = ()
    """(version, sampled tokens of the usable members), ascending; set when ready."""
    archive: str | None = None
    """The archive file that holds the bytes of its rollouts, once they have left the store."""
    lease: str | None = None
    """The lease that binds it, or under which it was spent."""
    arrival: Arrival | None = None
    """Set if its members are issued as they arrive."""


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRecord:
    """One slot of a group."""

    run: str
    group_id: str
    member: int
    state: MemberState = MemberState.PENDING
    retry: int = 0
    """The try that a write must name. Grows whenever the slot is handed out again, so that an older worker is fenced."""
    failures: int = 0
    """Tries that ended in an infrastructure failure or with a lost worker; bounded by `Laws.max_retries`."""
    session: str | None = None
    """Worker session that has claimed the slot."""
    claim: int = 0
    """Which claim of the session handed it out."""
    claimed_at: float | None = None
    uid: str | None = None
    """The rollout that filled the slot, or the last one that failed it."""
    reason: str | None = None
    """Why it failed, or why the last try did."""
    environment: str = ""
    """Of a member that was issued as it arrived: its group may have ended before."""


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRecord:
    """What the ledger needs to know about a stored rollout without opening its bytes."""

    run: str
    uid: str
    group_id: str
    member: int
    retry: int
    status: RolloutStatus
    digest: str
    """xxh3-128 in hex of the payload as accepted."""
    environment: str = ""
    """As the rollout says, and so must its group; empty: it does not say."""
    problem_id: str = ""
    """Likewise."""
    reward: float | None = None
    tokens: int = 0
    """Tokens of its kept paths, each segment once."""
    sampled_tokens: int = 0
    prefix_tokens: int = 0
    """Length of what stands before the first sampled token; shared with members of the same `prefix_digest`."""
    prefix_digest: str = ""
    oldest_version: int | None = None
    newest_version: int | None = None
    versions: tuple[int, ...] = ()
    """Distinct versions of the sampled tokens of our policy, ascending."""
    version_tokens: tuple[int, ...] = ()
    """Sampled tokens of each of `versions`."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """Named parts of the reward."""
    failure: str | None = None
    stale: bool = False
    """Came too late for `max_lag`: stored, not trained on."""
    stored_at: float = 0.0
    form: Literal["rollout", "item"] = "rollout"
    """What the bytes are: a rollout of ours, or an item of the compatible routes, which has no token ids that we could train on."""
    num_bytes: int = 0
    """Of an item."""
    kept: bool = True
    """Whether the default filter keeps the item."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotationRecord:
    """Says that an annotation is stored; its bytes are the payload `uid`."""

    run: str
    rollout_uid: str
    group_id: str
    name: str
    step: int | None
    uid: str
    digest: str
    failed: str | None = None
    stored_at: float = 0.0


def filled(slot: MemberRecord, rollout: RolloutRecord) -> MemberRecord:
    """A pending slot once a usable rollout of its try was accepted. Nothing is kept of this but the rollout: it says the same."""
    return changed(slot, state=MemberState.ACCEPTED, session=None, uid=rollout.uid, reason=None)


def all_filled(slots: Iterable[MemberRecord], rollouts: Iterable[RolloutRecord]) -> list[MemberRecord]:
    """Slots as they were kept last, with what the stored rollouts of their groups say."""
    tries = {(rollout.group_id, rollout.member, rollout.retry): rollout for rollout in rollouts if rollout.status.usable}
    found = [(slot, tries.get((slot.group_id, slot.member, slot.retry))) for slot in slots]
    return [filled(slot, rollout) if rollout is not None and slot.state is MemberState.PENDING else slot for slot, rollout in found]
