"""What outsiders were told and what really happened: kept apart from the buffer, so that its words can be held against it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from penstock.types import GroupRecord, Plan, RolloutRecord, RolloutStatus
from penstock.wire import digest
from tests.simulation.history import Violation
from tests.simulation.scenario import INITIAL


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some tokens in a row that one server sampled with one set of weights."""

    version: int
    count: int
    word: str
    """Stands for the tokens: a function of the weights that really sampled them, so that a wrong version shows."""


@dataclass(frozen=True, slots=True)
class Step:
    """One update that a learner really computed."""

    before: str
    update: int
    groups: tuple[str, ...]


def word(weights: str, seed: int, place: int) -> str:
    """What `weights` say at a place of a reply."""
    return digest(f"{weights} {seed} {place}".encode())[:8]


def encode(uid: str, status: RolloutStatus, seed: int, chunks: tuple[Chunk, ...], remark: str = "") -> bytes:
    """The bytes of a rollout."""
    spelled = ";".join(f"{chunk.version}:{chunk.count}:{chunk.word}" for chunk in chunks)
    return f"{uid}|{status}|{seed}|{remark}|{spelled}".encode()


def decode(body: bytes) -> tuple[str, int, list[Chunk]]:
    """Uid, seed and chunks of a rollout's bytes."""
    uid, _, seed, _, spelled = body.decode().split("|")
    chunks = [chunk.split(":") for chunk in spelled.split(";")] if spelled else []
    return uid, int(seed), [Chunk(int(version), int(count), said) for version, count, said in chunks]


class Witness:
    """Sees both ends of every promise."""

    def __init__(self, max_lag: int, max_reuse: int) -> None:
        self._max_lag, self._max_reuse = max_lag, max_reuse
        self.sent: dict[str, bytes] = {}
        """What was ever written under a uid, acknowledged or not."""
        self.acked: dict[str, RolloutRecord] = {}
        """Rollouts whose writer was told that they are stored."""
        self.opened: dict[str, GroupRecord] = {}
        """Groups whose opening was answered."""
        self.versions: dict[int, str] = {}
        """Digest that a version was said to mean, by anybody who was told."""
        self.steps: dict[str, Step] = {}
        """By the weights they gave: the true lineage of every set of weights."""
        self.plans: dict[tuple[int, int], Plan] = {}
        """Plans as delivered, by update and term."""
        self.newest_plans: dict[int, Plan] = {}
        """By update, the last one that any learner was given."""
        self.newest_term = 0
        self.renewed_at = 0.0
        """When the owner was last heard of by the buffer, or the buffer itself came back."""
        self.owner: str | None = None
        self.former_owners: set[str] = set()

    def ack(self, rollout: RolloutRecord, *, duplicate: bool) -> None:
        """A writer was told that its rollout is stored."""
        if rollout.uid in self.acked and not duplicate:
            raise Violation("D4", f"rollout {rollout.uid} was acknowledged before and is not called a duplicate", rollout.uid, rollout.group_id)
        if digest(self.sent[rollout.uid]) != rollout.digest:
            raise Violation("D1", f"rollout {rollout.uid} was acknowledged with a digest of other bytes", rollout.uid, rollout.group_id)
        self.acked[rollout.uid] = rollout

    def told_version(self, version: int, weights: str) -> None:
        """Somebody outside the buffer knows what a version means."""
        known = self.versions.setdefault(version, weights)
        if known != weights:
            raise Violation("F2", f"version {version} meant {known} and now means {weights}", version)

    def check_versions(self, stored: dict[int, str]) -> None:
        """A version that somebody knows is stored, and means what it meant."""
        for version, weights in self.versions.items():
            if stored.get(version) != weights:
                raise Violation("F2", f"version {version} was said to mean {weights} and the store has {stored.get(version)}", version)

    def heard_owner(self, now: float) -> None:
        """The buffer heard the owner of the term."""
        self.renewed_at = now

    def buffer_came_back(self, owner: str | None, now: float) -> None:
        """The buffer opened its store; whoever it finds there has its time anew. A take-over that was not durable never was."""
        self.owner, self.renewed_at = owner, now
        self.former_owners.discard(owner or "")

    def took_term(self, term: int, owner: str, replaces: str | None, now: float, term_seconds: float) -> None:
        """The buffer gave a term."""
        if owner != self.owner and self.owner not in (None, replaces) and now - self.renewed_at < term_seconds:
            raise Violation("E4", f"{owner} took over from {self.owner}, who renewed {now - self.renewed_at:.2f} s ago", owner, self.owner)
        if owner in self.former_owners:
            raise Violation("E4", f"{owner} was replaced and got a term again by a late request", owner)
        if owner != self.owner and self.owner is not None:
            self.former_owners.add(self.owner)
        self.owner, self.renewed_at = owner, now

    def told_term(self, term: int) -> None:
        """A learner knows that it has the term: older ones are over from now on."""
        self.newest_term = max(self.newest_term, term)

    def obeyed(self, verb: str, term: int) -> None:
        """The buffer did what a learner asked for."""
        if term < self.newest_term:
            raise Violation("E4", f"{verb} of term {term} was done after term {self.newest_term} had begun", f"term {term}")

    def delivered(self, plan: Plan, term: int) -> None:
        """A learner was given a plan; under one term it is always the same."""
        self.newest_plans[plan.update] = plan
        known = self.plans.setdefault((plan.update, term), plan)
        if known != plan:
            raise Violation("E4", f"update {plan.update} was cut twice with different groups", f"update {plan.update}")

    def check_tokens(self, plan: Plan, uid: str, body: bytes) -> None:
        """Before backward: the bytes are those that were written, no token is too old, and each was sampled by the weights it names."""
        if self.sent.get(uid) != body:
            raise Violation("D1", f"rollout {uid} was not written with the bytes that were served", uid)
        _, seed, chunks = decode(body)
        for place, chunk in enumerate(chunks):
            if plan.newest_version - chunk.version > self._max_lag:
                raise Violation("F1", f"rollout {uid} has tokens of version {chunk.version}, cut at {plan.newest_version} with max_lag {self._max_lag}", uid)
            if chunk.version not in self.versions or chunk.word != word(self.versions[chunk.version], seed, place):
                raise Violation("F3", f"rollout {uid} has tokens that version {chunk.version} did not sample", uid)

    def trained(self, before: str, after: str, update: int, groups: tuple[str, ...]) -> None:
        """A learner computed new weights."""
        if len(set(groups)) < len(groups):
            raise Violation("E2", f"update {update} trains a group twice", f"update {update}", *groups)
        self.steps[after] = Step(before, update, groups)

    def lineage(self, weights: str) -> Counter[str]:
        """How often each group was trained on, on the way to `weights`. Raises if one was used too often."""
        used: Counter[str] = Counter()
        while weights != INITIAL:
            step = self.steps[weights]
            used.update(step.groups)
            weights = step.before
        for group_id, count in used.items():
            if count > self._max_reuse:
                raise Violation("E2", f"group {group_id} was trained on in {count} updates of one lineage; max_reuse is {self._max_reuse}", group_id)
        return used
