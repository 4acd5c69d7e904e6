"""Known bugs, planted on purpose: each replaces a function of the product (or of an actor, where the product has none yet) while a run lasts.

A plant that the simulation does not see would mean that it looks away.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from penstock import ledger as law
from penstock.buffer.core import Buffer, Pending
from penstock.ledger import Decision, Ledger
from penstock.testing._log import Frame, LogCodec
from penstock.types import GroupRecord, GroupState, MemberRecord, MemberState, Plan, Record
from tests.simulation.buffering import BufferActor
from tests.simulation.clockwork import Call, Script, Unanswered
from tests.simulation.learning import Learner, prospect
from tests.simulation.planting import Patches, has_faults, laws_of, plant, plant_where, resolved
from tests.simulation.sampling import TOKENS_PER_CHUNK, Server
from tests.simulation.witness import Chunk, word


@plant
def ack_before_fsync() -> Patches:
    """Replies go out when the records are handed to the disk."""
    submit = Buffer._submit

    def hasty(self: Buffer, run: str, decision: Decision[Any]) -> Pending[Any]:
        return replace(submit(self, run, decision), durable=resolved())

    return [(Buffer, "_submit", hasty)]


@plant_where(lambda world: has_faults(world) and world.commit_seconds > 0.1)
def refusal_before_fsync() -> Patches:
    """Refusals and looks do not wait for what they stand on."""
    return [(Buffer, "settled", lambda self: resolved())]


@plant
def pop_before_reply() -> Patches:
    """A plan belongs to the reply that carries it: when that is lost and the learner asks again, other groups are taken."""
    cut = law.cut

    def popping(ledger: Ledger, past: Any, update: int, term: int, request: Any, now: float) -> Any:
        if update not in ledger.outcomes:
            ledger.plans.pop(update, None)
            past = _Without(past)
        return cut(ledger, past, update, term, request, now)

    return [(law, "cut", popping)]


class _Without:
    """A past that knows no plans."""

    def __init__(self, past: Any) -> None:
        self._past = past

    def __getattr__(self, name: str) -> Any:
        return (lambda run, update: None) if name == "plan" else getattr(self._past, name)


@plant
def plan_not_durable() -> Patches:
    """A plan is only remembered, not stored."""
    submit = Buffer._submit

    def forgetful(self: Buffer, run: str, decision: Decision[Any]) -> Pending[Any]:
        plans = [record for record in decision.records if isinstance(record, Plan)]
        done = submit(self, run, Decision(decision.reply, tuple(record for record in decision.records if record not in plans)))
        self.ledger(run).apply(plans)
        return done

    return [(Buffer, "_submit", forgetful)]


@plant
def two_cuts_of_one_group() -> Patches:
    """A cut does not bind its groups."""
    cut = law.cut

    def loose(*args: Any) -> Any:
        decision = cut(*args)
        return Decision(decision.reply, tuple(record for record in decision.records if getattr(record, "state", None) is not GroupState.BOUND))

    return [(law, "cut", loose)]


@plant_where(lambda world: has_faults(world))
def unfenced_term() -> Patches:
    """Whoever asks is taken for the owner of the term."""
    return [(laws_of(part), "check_term", lambda ledger, term: ledger.term) for part in ("terms", "cut", "updates")]


@plant
def second_learner_admitted() -> Patches:
    """A new learner takes over although the owner renews."""
    take_term = law.take_term

    def hospitable(ledger: Ledger, *args: Any, **options: Any) -> Any:
        return take_term(ledger, *args, **{**options, "replaces": ledger.term and ledger.term.owner})

    return [(law, "take_term", hospitable)]


@plant_where(lambda world: has_faults(world) and world.num_learners > 1)
def replaced_owner_returns() -> Patches:
    """A late request for a term that is long over begins another."""
    take_term = law.take_term

    def forgetful(ledger: Ledger, *args: Any, **options: Any) -> Any:
        term, ledger.term = ledger.term, ledger.term and replace(ledger.term, former=())
        try:
            return take_term(ledger, *args, **options)
        finally:
            ledger.term = term

    return [(law, "take_term", forgetful)]


@plant_where(lambda world: world.keep_newest == 1)
def retired_checkpoint_returns() -> Patches:
    """A late request to keep a checkpoint brings it back after it was retired."""
    keep = law.keep

    def naive(ledger: Ledger, past: Any, update: int, digest: str, term: int, now: float) -> Any:
        decision = keep(ledger, past, update, digest, term, now)
        return decision if decision.reply.kept else Decision(kept := replace(decision.reply, kept=True), (kept,))

    return [(law, "keep", naive)]


@plant
def deadlines_go_on_during_downtime() -> Patches:
    """After a restart, whoever could not renew while the buffer was down has expired."""
    return [(law, "restart_clocks", lambda ledger, now: ())]


@plant
def deadlines_by_the_wall_clock() -> Patches:
    """A jump of the wall clock moves deadlines."""
    return [(BufferActor, "store_clock", lambda self: self.clock.now + self.stage.wall_offset_seconds)]


@plant
def lag_off_by_one() -> Patches:
    """`>` where `>=` belongs: a token one version too old is trained on."""
    is_stale = laws_of("writes").is_stale

    def lenient(ledger: Ledger, group: GroupRecord, rollout: Any) -> bool:
        return bool(is_stale(ledger, group, rollout) and ledger.newest_version - rollout.oldest_version > ledger.laws.max_lag + 1)

    return [(laws_of("cut"), "_first_fresh", lambda ledger: ledger.newest_version - ledger.laws.max_lag - 1), (laws_of("writes"), "is_stale", lenient)]


@plant
def duplicate_fills_group() -> Patches:
    """A rollout that is written twice fills two slots."""
    accept = law.accept

    def generous(ledger: Ledger, past: Any, rollout: Any, payload: Any, now: float) -> Any:
        pending = [slot for slot in ledger.members.get(rollout.group_id, ()) if slot.state is MemberState.PENDING]
        if ledger.rollouts.pop(rollout.uid, None) is not None and pending:
            other = replace(rollout, member=pending[0].member, retry=pending[0].retry)
            return accept(ledger, _Forgetting(past), other, payload, now)
        return accept(ledger, past, rollout, payload, now)

    return [(law, "accept", generous)]


class _Forgetting:
    """A past that knows no rollouts."""

    def __init__(self, past: Any) -> None:
        self._past = past

    def __getattr__(self, name: str) -> Any:
        return (lambda run, uid: None) if name == "rollout" else getattr(self._past, name)


@plant
def late_member_reopens() -> Patches:
    """A member that comes after its group has ended opens it again."""
    accept = law.accept

    def nostalgic(ledger: Ledger, past: Any, rollout: Any, payload: Any, now: float) -> Any:
        group = past.group(ledger.run.run, rollout.group_id)
        if group is not None and group.state in (GroupState.SPENT, GroupState.DROPPED) and ledger.find_rollout(past, rollout.uid) is None:
            again = replace(group, state=GroupState.OPEN, order=ledger.last_order + 1, reason=None, updates=(), ready_order=None, usable=0, pending=group.size)
            members = [MemberRecord(run=group.run, group_id=group.id, member=number, retry=rollout.retry) for number in range(group.size)]
            ledger.apply((again, *members))
        return accept(ledger, past, rollout, payload, now)

    return [(law, "accept", nostalgic)]


@plant
def old_retry_accepted() -> Patches:
    """A worker that was thought dead may still fill the slot that others were given."""

    return [(laws_of("writes"), "_check_slot", lambda slot, rollout: None)]


@plant
def claim_repeated() -> Patches:
    """A claim that comes twice hands out twice."""
    claim = law.claim

    def eager(*args: Any, number: int | None = None) -> Any:
        return claim(*args)

    return [(law, "claim", eager)]


@plant
def credit_leak() -> Patches:
    """Credits of trained groups do not come back when their weights are live."""
    publish = law.publish

    def stingy(*args: Any) -> Any:
        decision = publish(*args)
        return Decision(decision.reply, tuple(record for record in decision.records if not isinstance(record, GroupRecord)))

    return [(law, "publish", stingy)]


@plant
def credit_kept_by_dropped() -> Patches:
    """A group that is dropped keeps its credit."""
    dropped = laws_of("groups").dropped

    def keeping(group: GroupRecord, *args: Any) -> Sequence[Record]:
        return tuple(replace(record, credit=group.credit) if isinstance(record, GroupRecord) else record for record in dropped(group, *args))

    return [(laws_of(part), "dropped", keeping) for part in ("groups", "writes")]


@plant_where(lambda world: has_faults(world) and world.resume != "replay")
def version_reused_after_recut() -> Patches:
    """The next version is counted from the outcomes that still stand."""
    record = law.record

    def recounting(ledger: Ledger, *args: Any, **options: Any) -> Any:
        newest = ledger.newest_version
        ledger.newest_version = max((outcome.version or 0 for outcome in ledger.outcomes.values()), default=0)
        try:
            return record(ledger, *args, **options)
        finally:
            ledger.newest_version = newest

    return [(law, "record", recounting)]


@plant_where(lambda world: world.skip_rate > 0)
def skipped_counts_as_trained() -> Patches:
    """Groups of a skipped update stay in their plan, as if it had been applied."""
    return [(laws_of("updates"), "_skip_groups", lambda ledger, plan, reason, now: ())]


@plant_where(lambda world: has_faults(world))
def torn_record_served() -> Patches:
    """After a crash, what can be read of a torn change set is taken for all of it."""
    decode = LogCodec.decode

    def careless(self: LogCodec, log: bytes) -> Iterator[Frame]:
        for frame in decode(self, log):
            readable = tuple(entry for entry in frame.entries if entry.record is not None)
            yield frame if frame.whole or not readable else replace(frame, entries=readable, whole=True)

    return [(LogCodec, "decode", careless)]


@plant
def outcome_after_publish() -> Patches:
    """Servers get new weights before their outcome is durable."""
    settle = Learner._settle

    def hasty(self: Learner, term: int, plan: Plan, after: str, recorded: Any) -> Script:
        if recorded is None:
            self.stage.weights.setdefault(after, self.owner)
            version = (yield from self.ask("look", prospect)).newest.version + 1
            for number in range(self.stage.scenario.num_servers):
                try:
                    yield Call(f"server{number}", "load", (version, after, term))
                except Unanswered:
                    continue
        yield from settle(self, term, plan, after, recorded)

    return [(Learner, "_settle", hasty)]


@plant
def one_version_per_reply() -> Patches:
    """A server names the version it had when a reply began, though its weights changed in between."""

    def inattentive(self: Server, seed: int, num_chunks: int, seconds_per_chunk: float, answer: Any) -> Script:
        version = self.version
        chunks: list[Chunk] = []
        for place in range(num_chunks):
            yield seconds_per_chunk
            chunks.append(Chunk(version, 1 + seed // (place + 1) % TOKENS_PER_CHUNK, word(self.weights, seed, place)))
        answer(tuple(chunks))

    return [(Server, "_sample", inattentive)]


@plant_where(lambda world: "zero_variance" in world.laws.filters)
def last_member_not_compared() -> Patches:
    """Filters look at a group before the member that completes it is there."""
    untrainable = laws_of("groups").untrainable

    def early(ledger: Ledger, rollouts: Sequence[Any]) -> str | None:
        found: str | None = untrainable(ledger, rollouts[:-1])
        return found

    return [(laws_of("groups"), "untrainable", early)]
